"""Class names of datasets and class counts of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from torch import nn

from hookbus.data.loaders import iter_datasets

__all__ = ["datasets_with_classes", "find_heads", "get_classes"]


def get_classes(dataset: Any) -> Any:
    """Return the class names that a dataset declares.

    Args:
        dataset: The dataset; `metainfo["classes"]`, `metainfo["CLASSES"]`, `classes` and `CLASSES` are tried in this
            order.

    Returns:
        Declared class names, or None if the dataset declares none.
    """
    metainfo = getattr(dataset, "metainfo", None)
    if isinstance(metainfo, Mapping):
        for name in ("classes", "CLASSES"):
            if metainfo.get(name) is not None:
                return metainfo[name]
    classes = getattr(dataset, "classes", None)
    classes = getattr(dataset, "CLASSES", None) if classes is None else classes
    return classes if isinstance(classes, Sized) else None


def datasets_with_classes(dataset: Any) -> list[Any]:
    """Return the innermost datasets that declare classes.

    Args:
        dataset: A dataset, a wrapper of datasets, or a loader.
    """
    datasets = [candidate for candidate in iter_datasets(dataset) if get_classes(candidate) is not None]
    # A wrapper often inherits default class names, so it does not count if a dataset inside declares its own.
    return [
        candidate
        for candidate in datasets
        if not any(get_classes(inner) is not None for inner in iter_datasets(candidate)[1:])
    ]


def find_heads(model: nn.Module, exclude: Iterable[str] = ()) -> dict[str, tuple[nn.Module, int]]:
    """Return the modules that have an integer attribute `num_classes`.

    Args:
        model: The model.
        exclude: Suffixes of module names, or class names, of modules to ignore.

    Returns:
        Pairs (module, `num_classes`) by module name.
    """
    excluded = tuple(exclude)
    return {
        name: (module, module.num_classes)
        for name, module in model.named_modules()
        # Not isinstance: a bool is an int, and a flag of this name is no class count.
        if type(getattr(module, "num_classes", None)) is int
        and type(module).__name__ not in excluded
        and not (excluded and name.endswith(excluded))
    }
