"""The hook: watches a metric, asks for the end when it no longer improves, and brings the best weights back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Hook, Metrics, Priority, Run
from hookbus.rules import Rule
from hookbus_early_stopping.best import BestWeights, bring_back, check_saver
from hookbus_early_stopping.config import EarlyStoppingConfig
from hookbus_early_stopping.monitor import Monitor

__all__ = ["EarlyStoppingHook"]


class EarlyStoppingHook(Hook):
    """Ends a training whose metric no longer improves, and brings the weights of its best score back.

    It decides after each validation of a training, whoever asked for it; the one before training counts for nothing.
    When training is over, however it ended, the best weights come back, after the last checkpoint was written: files
    hold the weights as training left them. A resumed run decides as if it had never been interrupted.

    Attributes:
        decision: the rule, with what it has seen.
        stopped_epoch: the epoch in which it asked for the end, None where it has not.
    """

    Config = EarlyStoppingConfig
    priority = Priority.VERY_LOW
    config: EarlyStoppingConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._begin()

    def _begin(self) -> None:
        self.decision = self.config.decision()
        self.stopped_epoch: int | None = None
        self._best: BestWeights | None = None
        self._monitor = Monitor(self.config.monitor, self.config.direction, strict=self.config.strict)

    @property
    def best_score(self) -> float | None:
        """The best score so far; the baseline before the first improvement."""
        return self.decision.best_score

    @property
    def best_epoch(self) -> int | None:
        """The number, from 1, of the epoch in which it was reached; None before the first improvement."""
        return self.decision.best_epoch

    @property
    def wait_count(self) -> int:
        """Validations in a row without improvement."""
        return self.decision.wait_count

    @property
    def needs_metrics(self) -> list[str]:
        """The metric that every validation has to give."""
        return [self.config.monitor] if self.config.strict else []

    @property
    def keeps_best_of(self) -> Mapping[str, Rule | None]:
        """The metric whose best file this hook needs, with its direction."""
        if self.config.best_weights != "file":
            return {}
        return {self.config.monitor: "less" if self.config.direction == "min" else "greater"}

    # -- during training -------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """A training that begins at zero has no best yet."""
        if run.mode != "train":
            return
        if run.iters_done == 0:
            self._begin()
        if self.config.best_weights is not None and run.model is not None:
            run.weights.put_back(self._bring_back)

    def before_train(self, run: Run) -> None:
        """A run that was stopped stays stopped when it is resumed with the same settings."""
        if self.config.best_weights == "file":
            check_saver(run, self.name)
        self._ask(run)

    def after_val(self, run: Run, metrics: Metrics) -> None:
        """Judge the newest score."""
        if run.mode != "train" or run.sanity_checking:
            return
        score = self._monitor.score(metrics)
        if score is None:
            return
        if self.decision.update(score, run.clock.number("epoch")):
            self._best = BestWeights.copied(run) if self.config.best_weights == "memory" else None
        self.stopped_epoch = run.clock.number("epoch") if self._ask(run) else None

    def after_run(self, run: Run) -> None:
        """Say so where the metric was never there, so that nothing was watched."""
        if self._monitor.missed:
            run.logger.warning("%s: the metric %r was never seen, so it decided nothing.", *self._names())

    def cleanup(self) -> None:
        """Bring nothing back any more."""
        if self._run is not None and self._run.mode == "train" and self.config.best_weights is not None:
            self._run.weights.put_back(None)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The decision, the epoch of the stop, and the best weights where they are kept in memory."""
        return {
            **self.decision.state_dict(),
            "stopped_epoch": self.stopped_epoch,
            "best_weights": None if self._best is None else self._best.state_dict(),
            "monitor": self._monitor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave. What was judged by another metric or direction says nothing here."""
        if not self._monitor.goes_on_from(state["monitor"]):
            return
        self.decision.load_state_dict(state)
        best = state["best_weights"]
        self.stopped_epoch, self._best = state["stopped_epoch"], None if best is None else BestWeights(**best)
        self._monitor.load_state_dict(state["monitor"])

    # -- inside ----------------------------------------------------------------------------------

    def _ask(self, run: Run) -> bool:
        """Ask for the end where it is time. Returns whether it is."""
        reason = self.decision.reason
        if reason is None or run.epochs_done < self.config.min_epochs:
            return False
        run.request_stop(f"{self.config.monitor} {reason}")
        return True

    def _bring_back(self) -> bool:
        """Put the best weights into the model. Returns whether there were any."""
        if self.best_epoch is None:
            self.run.logger.info("%s: %r never improved, so the weights stay.", *self._names())
            return False
        return bring_back(self.run, self._best, *self._names())

    def _names(self) -> tuple[str, str]:
        return self.name, self.config.monitor
