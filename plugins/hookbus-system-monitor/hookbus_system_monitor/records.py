"""Records stand on optimizer updates: one that falls due in the middle of an accumulation waits for the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Hook, Run

__all__ = ["RecordingHook"]


class RecordingHook(Hook):
    """A hook that records values of its own when they are due. An update has one record of it at most."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._forget_records()

    def values(self, run: Run) -> Mapping[str, float]:
        """What a record holds, by full name; {} where there is nothing new. Asked for once for each record."""
        raise NotImplementedError(f"{type(self).__name__} must say what it records")

    def after_train_iter(self, run: Run) -> None:
        """Record; in the middle of an accumulation, at the next update."""
        self._is_due = True
        if run.stepped:
            self._record(run)

    def after_optimizer_step(self, run: Run) -> None:
        """Record what waited for an update."""
        if self._is_due:
            self._record(run)

    def _forget_records(self) -> None:
        self._is_due, self._recorded_at = False, -1

    def _record(self, run: Run) -> None:
        self._is_due = False
        if run.steps_done == self._recorded_at:
            return
        values = self.values(run)
        if values:
            self._recorded_at = run.steps_done
            run.bus.emit("log_scalars", values=values)
