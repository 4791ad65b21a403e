"""Gradient accumulation on a schedule."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Needs, Run, Unit, hookimpl
from hookbus.checkpoint import schema
from hookbus_schedule.config import AccumulationConfig
from hookbus_schedule.milestones import get_start_points


class AccumulationHook(Hook):
    """Change the number of micro-batches per optimizer step, between two optimizer steps.

    The Trainer uses the number automatically. A custom loop reads it from the service `accumulate`.

    Attributes:
        accumulate: Current number of micro-batches per optimizer step; None before the first entry of the schedule.
    """

    Config = AccumulationConfig
    makes_requests = False
    schedules_accumulation = True
    config: AccumulationConfig
    state_schema = schema.record({"accumulate": schema.nullable(schema.integer(1))})
    accumulate: int | None = None

    @property
    def needs(self) -> Needs:
        """The start of iterations, and of epochs if the schedule counts them."""
        return Needs(points=get_start_points(self.config.unit))

    def check(self, run: Run) -> None:
        """Check that no other hook sets the number.

        Raises:
            ConfigError: If there is one.
        """
        self.check_unique(
            run,
            "sets the number of micro-batches per optimizer step",
            "The result depends on their order. Remove one of them.",
        )

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the epoch or iteration in which the schedule first changes the number."""
        first = next((number for number in self.config.schedule if number > 1), None)
        return {} if first is None else {"schedule": (first, self.config.unit)}

    def before_run(self, run: Run) -> None:
        """Reset the number if the training starts from scratch."""
        if run.mode == "train" and run.iters_done == 0:
            self.accumulate = None

    def before_train(self, run: Run) -> None:
        """Apply the restored number of a resumed run, or report that the schedule replaces that of the Trainer."""
        # Not the number of the schedule: the checkpoint may be in the middle of a group, which keeps its size.
        if self.accumulate is not None:
            self._apply(run, self.accumulate)
        elif 1 in self.config.schedule and run.accumulate not in (None, 1):
            run.logger.warning(
                "hook %r: its schedule replaces `accumulate=%s` of the Trainer from the start. Remove one of them.",
                self.name,
                run.accumulate,
            )

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run) -> None:
        """Apply the number of the schedule, unless an accumulation is in progress."""
        number, changes = run.current(self.config.unit), reversed(self.config.schedule.items())
        scheduled = next((count for begin, count in changes if begin <= number), None)
        if scheduled is not None and scheduled != self.accumulate and not run.accumulating:
            self._apply(run, scheduled)

    def state_dict(self) -> dict[str, Any]:
        """Return the current number."""
        return {"accumulate": self.accumulate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.accumulate = state["accumulate"]

    def _apply(self, run: Run, count: int) -> None:
        self.accumulate = count
        run.provide("accumulate", count)
        if run.trainer is not None:
            run.accumulate = count
