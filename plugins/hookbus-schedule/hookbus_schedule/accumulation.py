"""Micro-batches per update, on a schedule."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus_schedule.config import AccumulationConfig

__all__ = ["AccumulationHook"]


class AccumulationHook(Hook):
    """Changes how many micro-batches make an update, between two updates.

    The Trainer follows by itself. A loop of one's own asks for the service `accumulate`, the present number.

    Attributes:
        accumulate: the present number; None before the first entry of the schedule.
    """

    Config = AccumulationConfig
    makes_requests = False
    config: AccumulationConfig
    accumulate: int | None = None

    def before_run(self, run: Run) -> None:
        """A training that begins at zero is at the beginning of the schedule."""
        if run.mode == "train" and run.iters_done == 0:
            self.accumulate = None

    def before_train(self, run: Run) -> None:
        """A group that a resumed run is in the middle of keeps its number."""
        if self.accumulate is not None:
            self._apply(run, self.accumulate)

    def before_train_iter(self, run: Run) -> None:
        """Change the number where the schedule says so; a group that has begun is completed first."""
        wanted = self._wanted(run)
        if wanted is not None and wanted != self.accumulate and not run.mid_accumulation:
            self._apply(run, wanted)

    def state_dict(self) -> dict[str, Any]:
        """The present number."""
        return {"accumulate": self.accumulate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.accumulate = state["accumulate"]

    def _wanted(self, run: Run) -> int | None:
        number = run.clock.number(self.config.unit)
        return next((count for begin, count in reversed(self.config.schedule.items()) if begin <= number), None)

    def _apply(self, run: Run, count: int) -> None:
        self.accumulate = count
        run.provide("accumulate", count)
        if run.trainer is not None:
            run.trainer.steps.accumulate = count
