"""The services of a run: named objects that it provides to hooks."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.errors import ServiceError, did_you_mean
from hookbus.writers import BusWriter, Visualizer

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["Services"]

DIRECTORIES = {"checkpoints_dir": "checkpoints", "logs_dir": "logs", "visualization_dir": "visualization"}
PARTS = (
    "trainer",
    "config",
    "model",
    "train_loader",
    "val_loader",
    "test_loader",
    "optimizer",
    "scheduler",
    "device",
    "logger",
)


class Services:
    """What `run.get(name)` finds: what was provided, else the parts of the run itself."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._provided: dict[str, Any] = {}

    def provide(self, name: str, service: Any) -> None:
        """Offer an object under a name; it replaces what is there under this name."""
        self._provided[name] = service

    def provided(self, name: str) -> Any:
        """What was provided under this name; None for nothing."""
        return self._provided.get(name)

    @property
    def logger(self) -> logging.Logger:
        """Where messages for people go."""
        return self.provided("logger") or logging.getLogger("hookbus")

    def get(self, name: str, default: Any = None) -> Any:
        """The service of this name, or `default` where nobody provides it."""
        if name in self._provided:
            return self._provided[name]
        found = self._own(name)
        return default if found is None else found

    def require(self, name: str) -> Any:
        """The service of this name.

        Raises:
            ServiceError: nobody provides it; the message lists what there is.
        """
        found = self.get(name)
        if found is None:
            parts = [part for part in PARTS if getattr(self._run, part) is not None]
            directories = ("experiment_dir", *DIRECTORIES) if self._run.work_dir is not None else ()
            there = [*self._provided, *parts, "visualizer", "writer", *directories]
            raise ServiceError(f"There is no service {name!r} in this run.{did_you_mean(name, there)}")
        return found

    def _own(self, name: str) -> Any:
        if name in PARTS:
            return getattr(self._run, name)
        if name == "visualizer":
            return Visualizer(self._run)
        if name == "writer":
            return BusWriter(self._run)
        return self._directory(name)

    def _directory(self, name: str) -> Path | None:
        """A directory of the run, made on first use."""
        work_dir = self._run.work_dir
        if work_dir is None:
            return None
        if name == "experiment_dir":
            return work_dir.path
        return work_dir.directory(DIRECTORIES[name]) if name in DIRECTORIES else None
