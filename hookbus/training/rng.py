"""The random streams of a process, Python's, NumPy's and torch's, and the generators that samplers carry."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.data import Sampler

__all__ = [
    "get_rng_state",
    "mix",
    "preserved_rng",
    "seed_everything",
    "seed_of_rank",
    "seed_streams",
    "seeded_sampler",
    "set_rng_state",
]

MASK = (1 << 64) - 1


def get_rng_state() -> dict[str, Any]:
    """The state of every stream, as plain values and tensors that a checkpoint can hold."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (kind, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss)
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put every stream back."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        for device, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(each, device)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """What is drawn inside leaves no trace outside."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's streams, on every device."""
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy").random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


def mix(*numbers: int) -> int:
    """One well-spread 63-bit number from several; the same everywhere (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of the random streams of a process: that of the run on rank 0, and another one on every other."""
    return mix(seed, rank) if rank else seed


def seed_streams(seed: int) -> None:
    """Seed the random streams that data sets and samplers draw from."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def seeded_sampler(source: object, seed: int) -> Iterator[None]:
    """A sampler draws from streams and generators with this seed; all of them are as before afterwards.

    Args:
        source: the sampler. Generators of its own, and of samplers inside it, are seeded as well.
        seed: what its order follows from.
    """
    with preserved_rng(), ExitStack() as stack:
        seed_streams(seed)
        for generator in _generators_of(source):
            stack.callback(_seeded(generator, seed))
        yield


def _generators_of(source: object) -> list[Any]:
    """The generators that a sampler and those inside it carry."""
    samplers, seen = [source], {id(source): source}
    while samplers:
        carried = getattr(samplers.pop(), "__dict__", {}).values()
        fresh = {id(value): value for value in carried if id(value) not in seen}
        seen |= fresh
        samplers += [value for value in fresh.values() if isinstance(value, Sampler)]
    return [value for value in seen.values() if _is_generator(value)]


def _is_generator(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def _seeded(generator: Any, seed: int) -> Callable[[], object]:
    """Seed a generator; returns the way back."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        generator.manual_seed(seed)
        return lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        kept = generator.getstate()
        generator.seed(seed)
        return lambda: generator.setstate(kept)
    source = getattr(generator, "bit_generator", None)
    if source is None:
        legacy = generator.get_state()
        generator.seed(seed & 0xFFFFFFFF)
        return lambda: generator.set_state(legacy)
    before, source.state = source.state, type(source)(seed).state
    return lambda: setattr(source, "state", before)
