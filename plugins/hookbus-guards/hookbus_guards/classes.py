"""How many classes do data and model have? Read off what they say about themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any

from torch import nn

from hookbus.training.loaders import datasets_in

__all__ = ["classes_of", "declaring", "heads"]


def classes_of(dataset: Any) -> Any:
    """The class names that a data set declares: in its `metainfo`, as `classes` or as `CLASSES`; None for none."""
    metainfo = getattr(dataset, "metainfo", None)
    if isinstance(metainfo, Mapping):
        for name in ("classes", "CLASSES"):
            if metainfo.get(name) is not None:
                return metainfo[name]
    found = getattr(dataset, "classes", None)
    found = getattr(dataset, "CLASSES", None) if found is None else found
    return found if isinstance(found, Sized) else None


def declaring(dataset: Any) -> list[Any]:
    """The data sets that declare classes, looked for through wrappers: the innermost ones, since those hold the data.

    Args:
        dataset: a data set, or a loader of one.
    """
    found = [each for each in datasets_in(dataset) if classes_of(each) is not None]
    return [each for each in found if not any(classes_of(inner) is not None for inner in datasets_in(each)[1:])]


def heads(model: nn.Module, exclude: Iterable[str] = ()) -> dict[str, tuple[nn.Module, int]]:
    """The modules that have a whole number `num_classes`, by name, with that number.

    Args:
        model: the model.
        exclude: ends of names, or names of classes, of modules to leave out.
    """
    left_out = tuple(exclude)
    return {
        name: (module, module.num_classes)
        for name, module in model.named_modules()
        if type(getattr(module, "num_classes", None)) is int
        and type(module).__name__ not in left_out
        and not (left_out and name.endswith(left_out))
    }
