"""States of the random number generators (RNGs) of Python, NumPy and torch, and of generators in samplers."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

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
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the states of all global RNGs.

    Args:
        state: Return value of `get_rng_state()`. RNGs that are missing in it are not changed.
    """
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
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


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


SamplerState = tuple[dict[str, Any], list[Any]]
"""States of the global RNGs, and of the generators stored in a sampler or loader."""


class SamplerRNG:
    """RNG states of a sampler, which is read in parts while the global RNGs serve the training.

    Args:
        source: The sampler. Generators stored in it, and in samplers nested in it, are included.
        seed: Seed of all RNGs before the sampler is read.
    """

    def __init__(self, source: object, seed: int) -> None:
        self._source, self._seed = source, seed
        self._state: SamplerState | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Context manager in which the sampler is read; all other RNG states are restored on exit."""
        outside = get_sampler_state(self._source)
        if self._state is not None:
            set_sampler_state(self._source, self._state)
        else:
            seed_rng(self._seed)
            for generator in find_generators(self._source):
                _seed_generator(generator, self._seed)
        try:
            yield
        finally:
            self._state = get_sampler_state(self._source)
            set_sampler_state(self._source, outside)


def get_sampler_state(source: object) -> SamplerState:
    """Return the states of the global RNGs and of the generators stored in a sampler or loader.

    Together they determine the order in which a pass over the data begins. `weights_only=True` can load them.

    Args:
        source: A sampler or loader. Generators stored in it, and in the samplers nested in it, are included.
    """
    return get_rng_state(), [_get_generator_state(generator) for generator in find_generators(source)]


def set_sampler_state(source: object, state: SamplerState) -> None:
    """Restore the states of the global RNGs and of the generators stored in a sampler or loader.

    Args:
        source: The sampler or loader, or one with the same generators.
        state: Return value of `get_sampler_state()`. Generators that are missing in it are not changed.
    """
    set_rng_state(state[0])
    # Not strict: a sampler may have created a generator after the state was read.
    for generator, generator_state in zip(find_generators(source), state[1], strict=False):
        _set_generator_state(generator, generator_state)


def find_generators(source: object) -> list[Any]:
    """Return the generators stored in a sampler or loader, and in the samplers nested in it."""
    # By id: samplers may form cycles or share a generator, which must be seeded and restored once.
    samplers, seen = [source], {id(source): source}
    while samplers:
        values = getattr(samplers.pop(), "__dict__", {}).values()
        fresh = {id(value): value for value in values if id(value) not in seen}
        seen |= fresh
        samplers += [value for value in fresh.values() if isinstance(value, (Sampler, DataLoader))]
    return [value for value in seen.values() if _is_generator(value)]


def _is_generator(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def _seed_generator(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    # `RandomState` has no attribute `bit_generator`; a `Generator` cannot be reseeded, so its state is replaced.
    elif (source := getattr(generator, "bit_generator", None)) is None:
        generator.seed(seed & 0xFFFFFFFF)
    else:
        source.state = type(source)(seed).state


def _get_generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    source = getattr(generator, "bit_generator", None)
    return _to_lists(generator.get_state() if source is None else source.state)


def _to_lists(state: Any) -> Any:
    """Return the state of a NumPy generator with lists instead of arrays, which `weights_only=True` cannot load."""
    if isinstance(state, dict):
        return {key: _to_lists(value) for key, value in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_to_lists, state))
    return state.tolist() if hasattr(state, "tolist") else state


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
    elif (source := getattr(generator, "bit_generator", None)) is not None:
        source.state = state
    else:
        generator.set_state(state)
