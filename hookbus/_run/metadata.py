"""Metadata of a run, which `status.json` contains from the moment of the assignment on."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

__all__ = ["Metadata"]


class Metadata(UserDict[str, Any]):
    """Values by name. Each change writes `status.json`, so that the file describes a run that is killed later.

    Args:
        write: Function that writes the file; called after each change, and once per call of `update`.
    """

    def __init__(self, write: Callable[[], object]) -> None:
        super().__init__()
        self._write = write

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._write()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._write()

    def update(self, *values: Any, **more: Any) -> None:
        """Set several values, and write the file once."""
        self.data.update(*values, **more)
        self._write()
