"""Class names of datasets and class counts of models."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sized
from itertools import chain
from typing import Any

from torch import nn

from hookbus.data import iter_datasets
from hookbus.distributed import named_modules

CLASS_KEYS = ("classes", "CLASSES")


def get_classes(dataset: Any) -> Any:
    """Return the class names that a dataset declares.

    Args:
        dataset: The dataset; `metainfo["classes"]`, `metainfo["CLASSES"]`, `classes` and `CLASSES` are tried in this
            order.

    Returns:
        Declared class names, or None if the dataset declares none.
    """
    metainfo = getattr(dataset, "metainfo", None)
    described = metainfo if isinstance(metainfo, Mapping) else {}
    # Lazy: an attribute may be a property that loads the data.
    attributes = (getattr(dataset, name, None) for name in CLASS_KEYS)
    declared = chain((described.get(name) for name in CLASS_KEYS), attributes)
    classes = next((classes for classes in declared if classes is not None), None)
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
    """Return the modules that have an integer attribute `num_classes`, which may be one of NumPy or a tensor.

    Args:
        model: The model.
        exclude: Suffixes of module names, or class names, of modules to ignore.

    Returns:
        Pairs (module, `num_classes`) by module name.
    """
    excluded = tuple(exclude)
    return {
        name: (module, number)
        for name, module in named_modules(model)
        if type(module).__name__ not in excluded
        and not (excluded and name.endswith(excluded))
        and (number := _to_integer(getattr(module, "num_classes", None))) is not None
    }


def _to_integer(value: Any) -> int | None:
    """Return an integer of any type as an int; None for any other value."""
    # A flag of this name is no class count; the data type of a boolean tensor contains "bool".
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # torch raises ValueError and RuntimeError for other tensors
        return None
