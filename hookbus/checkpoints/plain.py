"""What a checkpoint may hold: plain Python values and tensors, so that reading it runs no code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import chain
from types import NoneType
from typing import Any

import torch

from hookbus.errors import CheckpointError

__all__ = ["check_plain", "plain_state"]

PLAIN = frozenset({NoneType, bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.device, torch.dtype})
"""What `weights_only=True` reads back, besides tensors, and dicts, lists, tuples and sets of these."""

LEAVES = PLAIN | {torch.Tensor, torch.nn.Parameter}
"""Types that are looked at no further. Most containers hold these alone, which is seen without a call for each."""


def check_plain(value: Any, where: str) -> None:
    """See that a checkpoint, or a part of it, can be read back without running any code.

    Args:
        value: the part.
        where: what it is called in the message.

    Raises:
        CheckpointError: something in it is neither a plain Python value nor a tensor.
    """
    found = _not_plain(value)
    if found is not None:
        place, kind = found
        raise CheckpointError(
            f"{where}{place} is a {kind.__name__}. A checkpoint holds plain Python values and tensors only, so that "
            "reading it runs no code: convert it, for example by float(), str(), dict() or torch.as_tensor()."
        )


def _not_plain(value: Any) -> tuple[str, type] | None:
    """Where in a value there is something that is not plain, and of which type; None where there is nothing."""
    kind = type(value)
    if kind in LEAVES:
        return None
    if kind in (dict, OrderedDict, Counter):
        if _holds_leaves(value) and (_holds_leaves(value.values()) or _is_of_flat_dicts(value)):
            return None
        for key, each in value.items():
            if type(key) not in LEAVES and (found := _not_plain(key)):
                return f": the key {key!r}{found[0]}", found[1]
            if type(each) not in LEAVES and (found := _not_plain(each)):
                return f"[{key!r}]{found[0]}", found[1]
        return None
    if kind in (list, tuple, set):
        if _holds_leaves(value):
            return None
        for i, each in enumerate(value):
            if found := _not_plain(each):
                return f"[{i}]{found[0]}", found[1]
        return None
    return None if isinstance(value, torch.Tensor) else ("", kind)


def _holds_leaves(values: Iterable[Any]) -> bool:
    return LEAVES.issuperset(map(type, values))


def _is_of_flat_dicts(value: dict[Any, Any]) -> bool:
    """Whether all its values are dicts that hold leaves alone, like the state that an optimizer has per parameter.

    There may be thousands of these while training waits, so not one line of Python is run for each.
    """
    inner = value.values()
    if not {dict}.issuperset(map(type, inner)):
        return False
    return _holds_leaves(chain.from_iterable(inner)) and _holds_leaves(chain.from_iterable(map(dict.values, inner)))


def plain_state(state: Any, where: str) -> Any:
    """What a hook, optimizer, scheduler or the like keeps, fit for a checkpoint, in containers of its own.

    Numbers of NumPy, which users set as learning rates or get as scores, become those of Python.

    Args:
        state: what its `state_dict()` has returned.
        where: what it is called in a message.

    Raises:
        CheckpointError: something in it is neither a plain Python value nor a tensor.
    """
    doubtful: list[Any] = []
    plain = _copied(state, doubtful)
    if doubtful:
        check_plain(plain, where)
    return plain


def _copied(value: Any, doubtful: list[Any]) -> Any:
    """A copy without numbers of NumPy; what is not known to be plain from looking at it is left and listed."""
    if type(value) is dict:
        if not _holds_leaves(value):
            doubtful.append(value)
        if _holds_leaves(value.values()):
            return dict(value)
        if _is_of_flat_dicts(value):
            return dict(zip(value, map(dict, value.values()), strict=True))
        return {key: _copied(each, doubtful) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(value if _holds_leaves(value) else [_copied(each, doubtful) for each in value])
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if type(value) not in LEAVES:
        doubtful.append(value)
    return value
