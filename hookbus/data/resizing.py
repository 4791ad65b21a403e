"""Copies of data loaders with another batch size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from hookbus.data.limited_loader import LimitedSampler
from hookbus.data.loaders import clone_loader
from hookbus.errors import ConfigError


def resize_loader(loader: Any, size: int) -> DataLoader[Any]:
    """Return a copy of a loader with another batch size, and the same dataset, sampler and other arguments.

    Args:
        loader: DataLoader with a batch size. The loader itself is returned if this is its batch size.
        size: Number of samples per batch.

    Raises:
        ConfigError: If the batch size of the loader cannot be changed.
    """
    if reason := _find_obstacle(loader):
        raise ConfigError(
            f"train_loader: its batch size cannot be changed, because {reason}. Pass a DataLoader with `batch_size`."
        )
    source = loader.batch_sampler
    if source.batch_size == size:
        return loader  # type: ignore[no-any-return]
    sampler = BatchSampler(source.sampler, size, source.drop_last)
    # The attribute is None for a loader that was built with a `batch_sampler`.
    return clone_loader(loader, sampler, batch_size=None if loader.batch_size is None else size)


def _find_obstacle(loader: Any) -> str:
    """Return why the batch size of a loader cannot be changed; "" if it can."""
    kind = type(loader)
    if not isinstance(loader, DataLoader):
        return f"it is no DataLoader, got {kind.__name__}"
    if kind.__iter__ is not DataLoader.__iter__:
        return f"{kind.__name__} reads its batches in its own way"
    if loader.batch_sampler is None:
        return f"its dataset ({type(loader.dataset).__name__}) determines the batches, got batch_size=None"
    if isinstance(loader.batch_sampler, LimitedSampler):
        return "its number of batches is limited by `limit_train_batches`, `overfit_batches` or `fast_dev_run`"
    # Exact type: the batches of another class may have a structure, such as one class each.
    if type(loader.batch_sampler) is not BatchSampler:
        return f"its batch sampler determines the batches, got {type(loader.batch_sampler).__name__}"
    return ""
