"""States of the random number generators (RNGs) of Python, NumPy and torch, and of generators in samplers."""

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
    "derive_seed",
    "get_rng_state",
    "isolate_rng",
    "rank_seed",
    "seed_everything",
    "seed_rng",
    "seed_sampler",
    "set_rng_state",
]

MASK_64_BITS = (1 << 64) - 1


def get_rng_state() -> dict[str, Any]:
    """Return the states of all global RNGs as built-in types and tensors, which `weights_only=True` can load."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    # NumPy is optional; as long as it is not imported, no code can have drawn from its RNG.
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        # A tensor instead of an array, and int64 because torch's uint32 support is limited.
        state["numpy"] = (name, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss)
    # Not `is_available`: reading the CUDA state would initialize CUDA and allocate memory on every device.
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the states returned by `get_rng_state()`; RNGs that are missing in it are not changed."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), position, has_gauss, cached))
    # The checkpoint may come from a machine with more CUDA devices than this one.
    if "cuda" in state and torch.cuda.is_available():
        for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(device_state, device)


@contextmanager
def isolate_rng() -> Iterator[None]:
    """Context manager that restores all global RNG states on exit."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def seed_everything(seed: int) -> None:
    """Seed the global RNGs of Python, NumPy and torch, on all devices."""
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy").random.seed(seed & 0xFFFFFFFF)  # NumPy accepts 32-bit seeds only
    torch.manual_seed(seed)


def derive_seed(*numbers: int) -> int:
    """Derive a 63-bit seed from integers with splitmix64 (Steele et al. 2014).

    The result is the same on all platforms and depends on the order of the numbers.

    Args:
        numbers: Integers of any size and sign, such as a seed, an epoch and an index.
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK_64_BITS
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64_BITS
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK_64_BITS
        state ^= state >> 31
    return state >> 1  # fits into the signed 64-bit integers of torch


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of the global RNGs of a rank: the seed of the run on rank 0, a derived seed on other ranks."""
    return derive_seed(seed, rank) if rank else seed


def seed_rng(seed: int) -> None:
    """Seed the global CPU RNGs, from which datasets and samplers draw."""
    # Not `torch.manual_seed`, which also seeds all devices; this function is called for each sample.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def seed_sampler(source: object, seed: int) -> Iterator[None]:
    """Seed all RNGs that a sampler may use, and restore their states on exit.

    Args:
        source: The sampler. Generators stored in it, and in samplers nested in it, are seeded as well.
        seed: The seed.
    """
    with isolate_rng(), ExitStack() as stack:
        seed_rng(seed)
        for generator in _find_generators(source):
            stack.callback(_seed_generator(generator, seed))
        yield


def _find_generators(source: object) -> list[Any]:
    """Return the generators stored in a sampler and in samplers nested in it."""
    # By id: samplers may form cycles or share a generator, which must be seeded and restored once.
    samplers, seen = [source], {id(source): source}
    while samplers:
        values = getattr(samplers.pop(), "__dict__", {}).values()
        fresh = {id(value): value for value in values if id(value) not in seen}
        seen |= fresh
        samplers += [value for value in fresh.values() if isinstance(value, Sampler)]
    return [value for value in seen.values() if _is_generator(value)]


def _is_generator(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def _seed_generator(generator: Any, seed: int) -> Callable[[], object]:
    """Seed a generator and return a function that restores its state."""
    if isinstance(generator, torch.Generator):
        torch_state = generator.get_state()
        generator.manual_seed(seed)
        return lambda: generator.set_state(torch_state)
    if isinstance(generator, random.Random):
        python_state = generator.getstate()
        generator.seed(seed)
        return lambda: generator.setstate(python_state)
    # `RandomState` has no attribute `bit_generator`; a `Generator` cannot be reseeded, so its state is replaced.
    source = getattr(generator, "bit_generator", None)
    if source is None:
        legacy_state = generator.get_state()
        generator.seed(seed & 0xFFFFFFFF)
        return lambda: generator.set_state(legacy_state)
    numpy_state, source.state = source.state, type(source)(seed).state
    return lambda: setattr(source, "state", numpy_state)
