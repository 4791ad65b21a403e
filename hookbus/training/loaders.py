"""Properties of data loaders, and copies of loaders with another sampler."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
)

from hookbus.training.train_shard import Part

__all__ = [
    "can_be_divided",
    "can_be_rebuilt",
    "dataset_of",
    "datasets_in",
    "epoch_listeners",
    "is_deterministic",
    "length_of",
    "rebuilt",
    "set_epoch",
    "source_of",
]

ALWAYS = ("dataset", "num_workers", "collate_fn", "pin_memory", "generator", "worker_init_fn")
"""Arguments that a DataLoader stores under the same name, without its sampler."""
WITH_WORKERS = ("multiprocessing_context", "prefetch_factor", "persistent_workers", "timeout")
"""Arguments that are valid only with workers."""


def datasets_in(dataset: Any) -> list[Any]:
    """Return a dataset and all datasets nested in it, outermost first.

    Nested datasets are found in the attribute `dataset` (as in `Subset`) and in the list or tuple `datasets` (as in
    `ConcatDataset`).

    Args:
        dataset: A dataset, or a loader.
    """
    return [dataset, *(nested for child in inside(dataset) for nested in datasets_in(child))]


def inside(dataset: Any) -> list[Any]:
    """Return the datasets directly nested in a dataset."""
    child, children = getattr(dataset, "dataset", None), getattr(dataset, "datasets", ())
    return [*([] if child is None else [child]), *(children if isinstance(children, (list, tuple)) else [])]


def length_of(loader: Any, shard: Part | None = None) -> int | None:
    """Return the number of batches of a loader, or None if it is unknown.

    Args:
        loader: The loader.
        shard: The shard whose batches are counted. Default: all batches.
    """
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        return None
    return shard.length(source_of(loader), length) if shard is not None and can_be_divided(loader) else length


def rebuilt(loader: DataLoader[Any], sampler: Any, **changes: Any) -> DataLoader[Any]:
    """Return a copy of a DataLoader with another sampler.

    Args:
        loader: The loader to copy.
        sampler: Batch sampler of the copy, or its sampler if the loader does not batch (`batch_size=None`).
        changes: Other arguments of DataLoader to replace, such as `dataset`.
    """
    names = ALWAYS + (WITH_WORKERS if loader.num_workers else ())
    arguments = {name: getattr(loader, name) for name in names} | changes
    if loader.batch_sampler is None:
        return DataLoader(**arguments, batch_size=None, sampler=sampler)
    return DataLoader(**arguments, batch_sampler=sampler)


def can_be_divided(loader: Any) -> bool:
    """Whether the batches of a loader can be assigned to ranks, and the loader does not shard its data already."""
    # A loader with `state_dict` saves its own position, which a copy of it with another sampler would not know.
    if hasattr(loader, "state_dict") or not can_be_rebuilt(loader):
        return False
    samplers = (source_of(loader), getattr(source_of(loader), "sampler", None))
    # `num_replicas` is the argument of DistributedSampler that third-party distributed samplers use as well.
    return not any(hasattr(sampler, "num_replicas") for sampler in samplers)


def dataset_of(loader: Any) -> Any:
    """Return the dataset of a loader, or the loader itself if it has no attribute `dataset`."""
    return getattr(loader, "dataset", loader)


def source_of(loader: DataLoader[Any]) -> Any:
    """Return the batch sampler of a DataLoader, or its sampler if it does not batch."""
    return loader.batch_sampler if loader.batch_sampler is not None else loader.sampler


def can_be_rebuilt(loader: object) -> bool:
    """Whether a loader is a map-style DataLoader of known length, which can be copied with another sampler."""
    # A subclass with its own `__iter__` may transform batches, which a plain DataLoader would not do.
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset) and length_of(source_of(loader)) is not None


def is_deterministic(dataset: Any) -> bool:
    """Whether samples of a dataset are known not to draw random numbers, so that they need no seed."""
    if isinstance(dataset, Subset):
        return is_deterministic(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(is_deterministic, dataset.datasets))
    # Exact types only: a subclass may augment samples.
    return type(dataset) in (TensorDataset, list, tuple)


def set_epoch(loader: Any, epoch: int) -> None:
    """Call `set_epoch` of the loader, its datasets, its sampler and its batch sampler, if they define it."""
    called: list[Any] = []
    batches = getattr(loader, "batch_sampler", None)
    data = epoch_listeners(getattr(loader, "dataset", None))
    for target in (loader, *data, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        set_epoch = getattr(target, "set_epoch", None)
        # Compared by identity: the sampler is usually reached twice, and samplers may define `__eq__`.
        if set_epoch is not None and not any(target is other for other in called):
            called.append(target)
            set_epoch(epoch)


def epoch_listeners(dataset: Any) -> list[Any]:
    """Return the outermost datasets that define `set_epoch`.

    Args:
        dataset: A dataset, with or without nested datasets.
    """
    # A dataset with `set_epoch` is responsible for the datasets nested in it.
    if hasattr(dataset, "set_epoch"):
        return [dataset]
    return [listener for child in inside(dataset) for listener in epoch_listeners(child)]
