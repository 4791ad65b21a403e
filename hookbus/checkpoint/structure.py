"""Structure of a file that was loaded as data: bounded depth and size, and no attribute that replaces a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any

import torch

from hookbus._utils.schema import InvalidDataError

MAX_DEPTH = 64
MAX_CONTAINERS = 5_000_000
"""Maximum number of containers; one that several containers share counts several times."""

SIMPLE_TYPES = frozenset({NoneType, bool, int, float, complex, str, bytes})


def check_structure(content: Any) -> None:
    """Raise if functions that walk over a content would not end, or would call an attribute of the file.

    A pickle may contain a list that contains itself, or lists that share their entries, so that a short file has an
    exponential number of paths.

    Raises:
        InvalidDataError: If the content is nested too deeply, is too large, or contains such an attribute.
    """
    for value in _iter_objects(content):
        attributes = getattr(value, "__dict__", None)
        if attributes and any(hasattr(type(value), name) for name in attributes):
            name = next(name for name in attributes if hasattr(type(value), name))
            raise InvalidDataError("content", "data", f"an attribute {name!r} of a {type(value).__name__}")


def check_has_data(content: Any) -> None:
    """Raise if a content with a valid structure includes tensors without data.

    Raises:
        InvalidDataError: If a tensor is on the meta device.
    """
    for value in _iter_objects(content):
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            raise InvalidDataError("content", "tensors with data", f"shape {tuple(value.shape)} without data")


def _iter_objects(content: Any) -> Iterator[Any]:
    """Yield all containers and tensors, level by level."""
    level, number = [content], 0
    for _ in range(MAX_DEPTH):
        yield from level
        children: list[Any] = []
        for parent in level:
            children += [child for child in _iter_children(parent) if type(child) not in SIMPLE_TYPES]
            if number + len(children) > MAX_CONTAINERS:
                raise InvalidDataError("content", f"at most {MAX_CONTAINERS} containers and tensors", "more")
        if not children:
            return
        level, number = children, number + len(children)
    raise InvalidDataError("content", f"at most {MAX_DEPTH} levels of nesting", "more")


def _iter_children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        # The methods of the class: an attribute of the object may replace them.
        return [*dict.keys(value), *dict.values(value), *getattr(value, "__dict__", {}).values()]
    return value if type(value) in (list, tuple, set, frozenset) else ()
