"""Metadata of a run, which `status.json` contains from the moment of the assignment on."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any


class Metadata(UserDict[str, Any]):
    """Values by name. Each change writes `status.json`, so that the file describes a run that is killed later.

    Attributes:
        write: Function that writes the file, while the run has one. Called after each change, and once per call of
            `update`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.write: Callable[[], object] = lambda: None

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.write()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.write()

    def update(self, *values: Any, **more: Any) -> None:
        """Set several values, and write the file once."""
        self.data.update(*values, **more)
        self.write()
