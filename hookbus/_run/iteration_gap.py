"""Steps between the iterations of a custom loop, which the checkpoints of iterations do not contain."""

from __future__ import annotations

from typing import Any

from hookbus._run.run_view import RunView
from hookbus._utils.arguments import format_label


class IterationGap:
    """Find optimizers and schedulers that step between `after_train_iter` and the next `before_train_iter`.

    The iterations up to the one after the first optimizer step are checked.

    Args:
        run: The run.

    Attributes:
        is_watching: Whether the end of the iteration has to be recorded.
    """

    def __init__(self, run: RunView) -> None:
        self._run = run
        self.is_watching = False
        self._recorded: tuple[int, dict[str, Any]] | None = None

    def record(self) -> None:
        """Record the steps at the end of an iteration."""
        if self.is_watching:
            self._recorded = self._run.clock.epoch_first_iter, self._count()

    def check(self) -> None:
        """Warn, at the start of an iteration, if there were steps since the previous iteration of the epoch."""
        if self._recorded is None:
            return
        (first_iter, before), self._recorded = self._recorded, None
        run, counts = self._run, self._count()
        if first_iter != run.clock.epoch_first_iter:  # the end of an epoch is in the checkpoints of epochs
            return
        self.is_watching = bool(run.optimizers) and not any(run.optimizer_events.counts.values())
        if stepped := [name for name, count in counts.items() if count != before.get(name)]:
            self.is_watching = False
            run.logger.warning(
                "%s: stepped after after_train_iter of iteration %s. A checkpoint of an iteration does not contain "
                "this step, so a run that resumes from it differs. Call step() before after_train_iter is emitted.",
                ", ".join(stepped),
                run.iters_done,
            )

    def _count(self) -> dict[str, Any]:
        """Return the number of steps of each optimizer and scheduler."""
        run = self._run
        counts = {format_label("optimizer", name): count for name, count in run.optimizer_events.counts.items()}
        schedulers = {format_label("scheduler", name): scheduler for name, scheduler in run.schedulers.items()}
        return counts | {name: getattr(scheduler, "last_epoch", None) for name, scheduler in schedulers.items()}
