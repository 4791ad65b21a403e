"""Early stopping hook: monitor a metric, request a stop when it stops improving, and restore the best weights."""

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
    """Stop the training when a metric stops improving, and restore the weights of the best score.

    The metric is evaluated after every validation during training, whichever hook requested it, except for the
    sanity-check validation before training. The best weights are restored after training, whatever its outcome except
    for a failure, and after the last checkpoint was written: checkpoints contain the final weights. A resumed run stops
    at the same epoch as an uninterrupted one.

    Attributes:
        decision: stopping rule with the best score and the number of validations without improvement.
        stopped_epoch: epoch in which the hook requested a stop, from 1; None if it requested none.
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
        """Best score so far; the baseline before the first improvement."""
        return self.decision.best_score

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the best score, from 1; None before the first improvement."""
        return self.decision.best_epoch

    @property
    def wait_count(self) -> int:
        """Number of consecutive validations without improvement."""
        return self.decision.wait_count

    @property
    def needs_metrics(self) -> list[str]:
        """Metric that every validation has to provide; empty unless `strict`."""
        return [self.config.monitor] if self.config.strict else []

    @property
    def keeps_best_of(self) -> Mapping[str, Rule | None]:
        """Metric whose best checkpoint the hook loads, with its direction; empty unless loading from a file."""
        if self.config.best_weights != "file":
            return {}
        return {self.config.monitor: "less" if self.config.direction == "min" else "greater"}

    # -- during training -------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Reset the state unless the run is resumed, and register for the restore after training."""
        if run.mode != "train":
            return
        if run.iters_done == 0:
            # The same hook object may have been used by a previous run.
            self._begin()
        if self.config.best_weights is not None and run.model is not None:
            # Not `after_train`: the last checkpoint is written after that event and needs the final weights.
            run.weights.put_back(self._bring_back)

    def before_train(self, run: Run) -> None:
        """Check that a best checkpoint will be available, and request a stop if the resumed run had stopped."""
        if self.config.best_weights == "file":
            # Not in `before_run`, where the checkpoint hook registers its service: the order depends on the priorities.
            check_saver(run, self.name)
        # The restored decision may be due: with unchanged settings a stopped run does not train another iteration.
        self._ask(run)

    def after_val(self, run: Run, metrics: Metrics) -> None:
        """Evaluate the latest score."""
        if run.mode != "train" or run.sanity_checking:
            return
        score = self._monitor.score(metrics)
        if score is None:
            return
        if self.decision.update(score, run.clock.number("epoch")):
            # Copy now: the next iteration changes the weights in place.
            self._best = BestWeights.copied(run) if self.config.best_weights == "memory" else None
        self.stopped_epoch = run.clock.number("epoch") if self._ask(run) else None

    def after_run(self, run: Run) -> None:
        """Log a warning if no validation provided the metric."""
        if self._monitor.missed:
            run.logger.warning("%s: no validation provided the metric %r; the hook had no effect.", *self._names())

    def cleanup(self) -> None:
        """Unregister from the restore after training."""
        if self._run is not None and self._run.mode == "train" and self.config.best_weights is not None:
            self._run.weights.put_back(None)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the decision, the stopped epoch, the monitor, and the best weights if they are kept in memory."""
        return {
            **self.decision.state_dict(),
            "stopped_epoch": self.stopped_epoch,
            "best_weights": None if self._best is None else self._best.state_dict(),
            "monitor": self._monitor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. A state of another metric or direction is ignored."""
        if not self._monitor.goes_on_from(state["monitor"]):
            return
        self.decision.load_state_dict(state)
        best = state["best_weights"]
        self.stopped_epoch, self._best = state["stopped_epoch"], None if best is None else BestWeights(**best)
        self._monitor.load_state_dict(state["monitor"])

    # -- helpers ---------------------------------------------------------------------------------

    def _ask(self, run: Run) -> bool:
        """Request a stop if the decision is to stop, and return whether it is."""
        reason = self.decision.reason
        # The decision is evaluated again after `min_epochs`: a metric that has recovered by then causes no stop.
        if reason is None or run.epochs_done < self.config.min_epochs:
            return False
        run.request_stop(f"{self.config.monitor} {reason}")
        return True

    def _bring_back(self) -> bool:
        """Load the best weights into the model, and return whether the weights were replaced."""
        if self.best_epoch is None:
            self.run.logger.info("%s: %r never improved; the model keeps its final weights.", *self._names())
            return False
        return bring_back(self.run, self._best, *self._names())

    def _names(self) -> tuple[str, str]:
        return self.name, self.config.monitor
