"""Copies of objects that belong to no run: pickling and deep copies of hooks.

In a copy, references to runs, buses and trainers are None. The classes of these define `_belongs_to_run = True`.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, TypeVar

T = TypeVar("T")

DETACHED = "hookbus: detached"
"""Key of the memo of `copy.deepcopy` within the copy of a hook."""
OWNER, RUN = "owner", "run"
"""Persistent IDs of the object itself, and of what a copy does not contain."""


def dump_detached(owner: object, state: object) -> bytes:
    """Pickle the state of an object."""
    file = io.BytesIO()
    _Pickler(file, owner).dump(state)
    return file.getvalue()


def load_detached(cls: type[T], data: bytes) -> T:
    """Return a new object with a state pickled by `dump_detached`."""
    owner = cls.__new__(cls)
    _set_state(owner, _Unpickler(io.BytesIO(data), owner).load())
    return owner


def copy_detached(owner: T, state: object, memo: dict[Any, Any]) -> T:
    """Return a new object with a deep copy of a state.

    Args:
        owner: Object to copy.
        state: Its state.
        memo: Memo of `copy.deepcopy`.
    """
    memo[DETACHED] = True
    copied = memo[id(owner)] = owner.__class__.__new__(owner.__class__)
    _set_state(copied, copy.deepcopy(state, memo))
    return copied


def deepcopy_as_none(self: object, memo: dict[Any, Any]) -> None:
    """Replace an object by None in the deep copy of a hook: the `__deepcopy__` of runs, buses and trainers.

    Raises:
        TypeError: If the object itself is copied.
    """
    if DETACHED not in memo:
        raise TypeError(f"cannot copy {type(self).__name__!r} object: it belongs to a run. Create a new one.")


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, owner: object) -> None:
        super().__init__(file)
        self._owner = owner

    def persistent_id(self, obj: object) -> str | None:
        if obj is self._owner:
            return OWNER
        return RUN if getattr(type(obj), "_belongs_to_run", False) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, owner: object) -> None:
        super().__init__(file)
        self._owner = owner

    def persistent_load(self, pid: str) -> object:
        return self._owner if pid == OWNER else None


def _set_state(owner: Any, state: Any) -> None:
    """Set the state returned by `__getstate__`: a dict, or a pair with the values of slots."""
    if hasattr(owner, "__setstate__"):
        owner.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    vars(owner).update(attributes or {})
    for name, value in (slots or {}).items():
        setattr(owner, name, value)
