"""What a checkpoint may hold: plain Python values and tensors, so that reading it runs no code."""

from __future__ import annotations

from collections import Counter, OrderedDict
from types import NoneType
from typing import Any

import torch

from hookbus.errors import CheckpointError

__all__ = ["check_plain", "without_numpy"]

PLAIN = frozenset({NoneType, bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.device, torch.dtype})
"""What `weights_only=True` reads back, besides tensors, and dicts, lists, tuples and sets of these."""


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
    if kind in PLAIN:
        return None
    if kind in (dict, OrderedDict, Counter):
        for key, each in value.items():
            if type(key) is not str and (found := _not_plain(key)):
                return f": the key {key!r}{found[0]}", found[1]
            if found := _not_plain(each):
                return f"[{key!r}]{found[0]}", found[1]
        return None
    if kind in (list, tuple, set):
        for i, each in enumerate(value):
            if type(each) not in PLAIN and (found := _not_plain(each)):
                return f"[{i}]{found[0]}", found[1]
        return None
    return None if isinstance(value, torch.Tensor) else ("", kind)


def without_numpy(value: Any) -> Any:
    """The same state with Python numbers for those of NumPy, which users set as learning rates and the like."""
    if type(value) is dict:
        return {key: without_numpy(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(without_numpy, value))
    return value.item() if type(value).__module__ == "numpy" and value.shape == () else value
