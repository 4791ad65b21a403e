"""Properties of data loaders, and copies of loaders with another sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

if TYPE_CHECKING:
    from hookbus.data.samplers import TrainShard

WRAPPER_ATTRIBUTES = ("base_dataloader", "_dataloader")
"""Attributes in which the loaders of Accelerate and Fabric store the DataLoader that they wrap."""
EPOCH_COUNTERS = ("iteration", "_num_iter_calls")
"""Attributes in which the loaders of Accelerate and Fabric count their epochs."""


def iter_datasets(dataset: Any) -> list[Any]:
    """Return a dataset and all datasets nested in it, outermost first.

    Nested datasets are found in the attribute `dataset` (as in `Subset`) and in the list or tuple `datasets` (as in
    `ConcatDataset`).

    Args:
        dataset: A dataset, or a loader.
    """
    return [dataset, *(nested for child in _child_datasets(dataset) for nested in iter_datasets(child))]


def _child_datasets(dataset: Any) -> list[Any]:
    """Return the datasets directly nested in a dataset."""
    child, children = getattr(dataset, "dataset", None), getattr(dataset, "datasets", ())
    return [*([] if child is None else [child]), *(children if isinstance(children, (list, tuple)) else [])]


def loader_length(loader: Any, shard: TrainShard | None = None) -> int | None:
    """Return the number of batches of a loader, or None if it is unknown.

    Args:
        loader: The loader.
        shard: The shard whose batches are counted. Default: all batches.
    """
    try:
        length = len(loader)
    except (TypeError, NotImplementedError):
        return None
    return shard.length(index_sampler(loader), length) if shard is not None and is_shardable(loader) else length


def clone_loader(loader: DataLoader[Any], sampler: Any, **changes: Any) -> DataLoader[Any]:
    """Return a copy of a DataLoader with another sampler.

    Args:
        loader: The loader to copy. The copy has its class, its attributes and its arguments, but its own workers.
        sampler: Batch sampler of the copy, or its sampler if the loader does not batch (`batch_size=None`).
        changes: Other arguments of DataLoader to replace, such as `dataset`.
    """
    replaced = "sampler" if loader.batch_sampler is None else "batch_sampler"
    clone: DataLoader[Any] = _copy(loader, **{replaced: sampler, "_iterator": None}, **changes)
    return clone


def clone_wrapper(loader: Any, base: DataLoader[Any]) -> Any:
    """Return a copy of a loader that iterates over another base loader.

    Args:
        loader: A loader that wraps a DataLoader, or a DataLoader.
        base: Base loader of the copy; returned unchanged if `loader` is not a wrapper.
    """
    name = _get_wrapper_attribute(loader)
    return base if name is None else _copy(loader, **{name: base})


def get_base_loader(loader: Any) -> DataLoader[Any] | None:
    """Return the DataLoader to copy: the loader itself, or the one that it wraps; None if there is none."""
    name = _get_wrapper_attribute(loader)
    base: DataLoader[Any] = loader if name is None or is_rebuildable(loader) else vars(loader)[name]
    # Otherwise a batch of the wrapper is not a batch of the loader that it wraps.
    if not is_rebuildable(base) or loader_length(loader) != loader_length(base):
        return None
    return base


def _copy(loader: Any, **changes: Any) -> Any:
    # Not `copy.copy`, which a subclass may customize, and not the constructor, whose arguments a subclass may change.
    clone = object.__new__(type(loader))
    # Not `setattr`: DataLoader does not allow to set its arguments after its initialization.
    vars(clone).update(vars(loader), **changes)
    return clone


def _get_wrapper_attribute(loader: object) -> str | None:
    """Return the name of the attribute in which a wrapper stores its DataLoader, None for any other loader."""
    attributes = getattr(loader, "__dict__", {})
    return next((name for name in WRAPPER_ATTRIBUTES if isinstance(attributes.get(name), DataLoader)), None)


def is_shardable(loader: Any) -> bool:
    """Whether the batches of a loader can be assigned to ranks, and the loader does not shard its data already."""
    # A loader with `state_dict` saves its own position, which a copy of it with another sampler would not know.
    if hasattr(loader, "state_dict") or not is_rebuildable(loader):
        return False
    samplers = (index_sampler(loader), getattr(index_sampler(loader), "sampler", None))
    # `num_replicas` is the argument of DistributedSampler that third-party distributed samplers use as well.
    return not any(hasattr(sampler, "num_replicas") for sampler in samplers)


def index_sampler(loader: DataLoader[Any]) -> Any:
    """Return the batch sampler of a DataLoader, or its sampler if it does not batch."""
    return loader.batch_sampler if loader.batch_sampler is not None else loader.sampler


def is_rebuildable(loader: object) -> bool:
    """Whether a loader is a map-style DataLoader of known length, which can be copied with another sampler."""
    # A subclass with its own `__iter__` may transform batches, which a plain DataLoader would not do.
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        return False
    return not isinstance(loader.dataset, IterableDataset) and loader_length(index_sampler(loader)) is not None


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
    for name in EPOCH_COUNTERS if _get_wrapper_attribute(loader) is not None else ():
        if name in vars(loader):
            vars(loader)[name] = epoch
    called: list[Any] = []
    batches = getattr(loader, "batch_sampler", None)
    data = epoch_aware_datasets(getattr(loader, "dataset", None))
    for target in (loader, *data, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        method = getattr(target, "set_epoch", None)
        # Compared by identity: the sampler is usually reached twice, and samplers may define `__eq__`.
        if method is not None and not any(target is other for other in called):
            called.append(target)
            method(epoch)


def epoch_aware_datasets(dataset: Any) -> list[Any]:
    """Return the outermost datasets that define `set_epoch`.

    Args:
        dataset: A dataset, with or without nested datasets.
    """
    # A dataset with `set_epoch` is responsible for the datasets nested in it.
    if hasattr(dataset, "set_epoch"):
        return [dataset]
    return [nested for child in _child_datasets(dataset) for nested in epoch_aware_datasets(child)]
