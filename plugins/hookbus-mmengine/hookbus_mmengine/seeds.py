"""Seeds in a loader: without one in `randomness`, MMEngine passes others to samplers and workers in each process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mmengine.dataset import InfiniteSampler


def get_seeds(loader: Any) -> dict[str, Any]:
    """Return the seeds of the samplers of a loader, and that of its workers; None for one without a seed.

    Args:
        loader: A DataLoader.
    """
    return {
        "samplers": [_get_int(getattr(sampler, "seed", None)) for sampler in _list_samplers(loader)],
        "workers": _get_int(_get_worker_options(loader).get("seed")),
    }


def set_seeds(loader: Any, seeds: Mapping[str, Any]) -> None:
    """Set the seeds of the samplers and workers of a loader, before a pass over it begins.

    Args:
        loader: A DataLoader.
        seeds: What `get_seeds` has returned.
    """
    for sampler, seed in zip(_list_samplers(loader), seeds["samplers"], strict=True):
        if seed is not None and hasattr(sampler, "seed"):
            sampler.seed = seed
    options = _get_worker_options(loader)
    if seeds["workers"] is not None and "seed" in options:
        options["seed"] = seeds["workers"]


def _get_int(seed: Any) -> int | None:
    """Return a seed that a checkpoint can contain; None for any other object."""
    return seed if isinstance(seed, int) else None


def reset_samplers(loader: Any) -> None:
    """Let samplers without an end begin again, which continue in each pass where they were read before.

    Args:
        loader: A DataLoader.
    """
    for sampler in _list_samplers(loader):
        if isinstance(sampler, InfiniteSampler):
            sampler.indices = sampler._indices_of_rank()


def _list_samplers(loader: Any) -> list[Any]:
    """Return the batch sampler of a loader, and the sampler of samples; None for one that it does not have."""
    batches = getattr(loader, "batch_sampler", None)
    # With a batch sampler, the attribute `sampler` of the loader itself is one that is not used.
    return [batches, getattr(loader if batches is None else batches, "sampler", None)]


def _get_worker_options(loader: Any) -> dict[str, Any]:
    """Return the arguments with which MMEngine initializes a worker."""
    init = getattr(loader, "worker_init_fn", None)
    return init.keywords if isinstance(init, partial) else {}
