"""Validation of checkpoint contents: built-in types and tensors only, nested to a bounded depth and size."""

from __future__ import annotations

import io
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from types import NoneType
from typing import Any

import torch

from hookbus._utils.schema import InvalidDataError
from hookbus.distributed.sharding import is_sharded
from hookbus.errors import CheckpointError

BUILTIN_TYPES = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.device, torch.dtype}
)
"""Types that `torch.load(weights_only=True)` loads, in addition to tensors, dicts, lists, tuples and sets."""

LEAF_TYPES = BUILTIN_TYPES | {torch.Tensor, torch.nn.Parameter}
"""Types that are not inspected further. Most containers consist of these types, which one `issuperset` call checks."""

_loadable_types: set[type] = set()
"""Subclasses of tensors that `torch.load(weights_only=True)` has loaded in this process."""


def validate_plain_data(value: Any, where: str) -> None:
    """Raise if a checkpoint, or a component of it, cannot be loaded without executing code.

    Raises:
        CheckpointError: If the value contains an object that is neither a built-in Python type nor a tensor.
    """
    invalid = _find_invalid(value)
    if invalid is not None:
        path, type_ = invalid
        raise CheckpointError(
            f"{where}{path}: invalid type {type_.__name__}. A checkpoint contains only built-in Python types and "
            f"tensors, so that loading it executes no code. {_get_fix(type_)}"
        )


def _get_fix(type_: type) -> str:
    if issubclass(type_, torch.Tensor):
        return (
            "Convert the tensor with as_subclass(torch.Tensor), or allow the class in every process that loads the "
            f"checkpoint: torch.serialization.add_safe_globals([{type_.__name__}])."
        )
    return "Convert the value, for example with float(), str(), dict() or torch.as_tensor()."


def _find_invalid(value: Any) -> tuple[str, type] | None:
    """Return path and type of the first object of another type, None if there is none."""
    # Exact types only: `weights_only=True` rejects subclasses of dict, list, str, ...
    type_ = type(value)
    if type_ in LEAF_TYPES:
        return None
    if type_ in (dict, OrderedDict, Counter):
        # The state dict of a module has the attribute `_metadata`.
        if type_ is not dict and vars(value) and (invalid := _find_invalid(vars(value))):
            return f": the attribute {invalid[0]}", invalid[1]
        if _has_only_leaves(value) and (_has_only_leaves(value.values()) or _has_only_flat_dicts(value)):
            return None
        for key, item in value.items():
            if type(key) not in LEAF_TYPES and (invalid := _find_invalid(key)):
                return f": the key {key!r}{invalid[0]}", invalid[1]
            if type(item) not in LEAF_TYPES and (invalid := _find_invalid(item)):
                return f"[{key!r}]{invalid[0]}", invalid[1]
        return None
    if type_ in (list, tuple, set):
        if _has_only_leaves(value):
            return None
        for i, item in enumerate(value):
            if invalid := _find_invalid(item):
                return f"[{i}]{invalid[0]}", invalid[1]
        return None
    return None if isinstance(value, torch.Tensor) and _is_loadable(value) else ("", type_)


def _is_loadable(tensor: torch.Tensor) -> bool:
    """Return whether torch loads tensors of a subclass as data, found by saving and loading one tensor of the type."""
    # Sharded tensors are written as local shards, of the type torch.Tensor.
    if type(tensor) in _loadable_types or is_sharded(tensor):
        return True
    file = io.BytesIO()
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.save(tensor, file)
            file.seek(0)
            torch.load(file, weights_only=True, map_location="meta")
    except Exception:
        return False
    _loadable_types.add(type(tensor))
    return True


def _has_only_leaves(values: Iterable[Any]) -> bool:
    return LEAF_TYPES.issuperset(map(type, values))


def _has_only_flat_dicts(value: dict[Any, Any]) -> bool:
    """Return whether all values are dicts of leaves, like the per-parameter state of an optimizer."""
    # There may be thousands of these dicts while training is blocked, so the loops over them run in C.
    inner = value.values()
    if not {dict}.issuperset(map(type, inner)):
        return False
    return _has_only_leaves(chain.from_iterable(inner)) and _has_only_leaves(
        chain.from_iterable(map(dict.values, inner))
    )


def to_plain_data(state: Any, where: str) -> Any:
    """Return a state dict in new containers, with NumPy scalars converted to Python numbers.

    NumPy scalars occur as learning rates set by users and as metric values.

    Raises:
        CheckpointError: If the state contains an object that is neither a built-in Python type nor a tensor.
    """
    unchecked: list[Any] = []
    plain = _copy(state, unchecked)
    # The full check walks every container again; the copy has shown already that most states do not need it.
    if unchecked:
        validate_plain_data(plain, where)
    return plain


def _copy(value: Any, unchecked: list[Any]) -> Any:
    """Copy containers and convert NumPy scalars; append objects of types not in `LEAF_TYPES` to `unchecked`."""
    if type(value) is dict:
        if not _has_only_leaves(value):
            unchecked.append(value)
        if _has_only_leaves(value.values()):
            return dict(value)
        if _has_only_flat_dicts(value):
            return dict(zip(value, map(dict, value.values()), strict=True))
        return {key: _copy(item, unchecked) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(value if _has_only_leaves(value) else [_copy(item, unchecked) for item in value])
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if type(value) not in LEAF_TYPES:
        unchecked.append(value)
    return value


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
