"""What can be told of a loader, and how it is built again."""

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
WITH_WORKERS = ("multiprocessing_context", "prefetch_factor", "persistent_workers", "timeout")
"""What a DataLoader keeps of its arguments, besides its order, under their own names."""


def datasets_in(dataset: Any) -> list[Any]:
    """A data set and those inside it, outermost first: in `dataset` as of Subset, in `datasets` as of ConcatDataset.

    Args:
        dataset: a data set, or a loader of one.
    """
    return [dataset, *(found for each in inside(dataset) for found in datasets_in(each))]


def inside(dataset: Any) -> list[Any]:
    """The data sets just inside one."""
    one, several = getattr(dataset, "dataset", None), getattr(dataset, "datasets", ())
    return [*([] if one is None else [one]), *(several if isinstance(several, (list, tuple)) else [])]


def length_of(loader: Any, part: Part | None = None) -> int | None:
    """The number of batches of a loader; None where it does not know.

    Args:
        loader: the loader.
        part: which of them are this process's; None for all.
    """
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        return None
    return part.length(source_of(loader), length) if part is not None and can_be_divided(loader) else length


def rebuilt(loader: DataLoader[Any], order: Any, **changes: Any) -> DataLoader[Any]:
    """A DataLoader with the same arguments, but for those that are given.

    Args:
        loader: the one that is followed.
        order: takes the place of its batch sampler, or of its sampler where it makes no batches.
        changes: other arguments of DataLoader, such as `dataset`.
    """
    names = ALWAYS + (WITH_WORKERS if loader.num_workers else ())
    arguments = {name: getattr(loader, name) for name in names} | changes
    if loader.batch_sampler is None:
        return DataLoader(**arguments, batch_size=None, sampler=order)
    return DataLoader(**arguments, batch_sampler=order)


def can_be_divided(loader: Any) -> bool:
    """Whether a loader can be read in parts by several processes, and does not do so by itself."""
    if hasattr(loader, "state_dict") or not can_be_rebuilt(loader):
        return False
    samplers = (source_of(loader), getattr(source_of(loader), "sampler", None))
    return not any(hasattr(each, "num_replicas") for each in samplers)


def dataset_of(loader: Any) -> Any:
    """What a loader reads from; the loader itself where it does not tell."""
    return getattr(loader, "dataset", loader)


def source_of(loader: DataLoader[Any]) -> Any:
    """What a DataLoader takes its batches of indices from, or its indices where it makes no batches."""
    return loader.batch_sampler if loader.batch_sampler is not None else loader.sampler


def can_be_rebuilt(loader: object) -> bool:
    """Whether a loader is a map-style DataLoader of known length, which can read its data in another order."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset) and length_of(source_of(loader)) is not None


def is_deterministic(dataset: Any) -> bool:
    """Whether a data set surely draws no random numbers, so that its samples need no seed."""
    if isinstance(dataset, Subset):
        return is_deterministic(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(is_deterministic, dataset.datasets))
    return type(dataset) in (TensorDataset, list, tuple)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to whatever wants to know it: the loader, its data sets, its samplers."""
    seen: list[Any] = []
    batches = getattr(loader, "batch_sampler", None)
    data = epoch_listeners(getattr(loader, "dataset", None))
    for target in (loader, *data, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        set_epoch = getattr(target, "set_epoch", None)
        if set_epoch is not None and not any(target is each for each in seen):
            seen.append(target)
            set_epoch(epoch)


def epoch_listeners(dataset: Any) -> list[Any]:
    """The data sets that want to know the epoch; one that does answers for those inside it.

    Args:
        dataset: a data set, with others inside it or not.
    """
    if hasattr(dataset, "set_epoch"):
        return [dataset]
    return [found for each in inside(dataset) for found in epoch_listeners(each)]
