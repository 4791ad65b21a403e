"""Early stopping hook: monitor a metric, request a stop when it stops improving, and restore the best weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus import Direction, Hook, Metrics, Needs, Priority, Run, Unit, hookimpl
from hookbus.checkpoint import check_averages, check_compatible, schema
from hookbus_early_stopping.best_weights import BestWeights, check_saver, check_savers
from hookbus_early_stopping.config import EarlyStoppingConfig
from hookbus_early_stopping.monitor import Monitor

_weights = schema.mapping_of(schema.any_value)
_monitor = schema.record(
    {"full_name": schema.nullable(schema.string()), "mode": schema.string("min|max"), "warned": schema.boolean}
)


class EarlyStoppingHook(Hook):
    """Stop the training when a metric stops improving, and restore the weights of the best score.

    A metric of validations is evaluated after every validation during training, whichever hook requested it, except for
    the sanity-check validation before training. A training metric, such as `train/loss`, is evaluated after every
    training epoch that was not left early, on its mean over the epoch and over all ranks.

    The best weights are restored after training, unless it failed, and after the last checkpoint is written, which
    contains the final weights. A resumed run stops at the same epoch as an uninterrupted one.

    Attributes:
        stopping_rule: Stopping rule with the best score and the number of scores without improvement.
        stopped_epoch: Epoch in which the hook requested a stop, from 1; None if it requested none.
    """

    Config = EarlyStoppingConfig
    stops_training = True
    priority = Priority.VERY_LOW
    config: EarlyStoppingConfig
    state_schema = schema.record(
        {
            "best_score": schema.nullable(schema.number()),
            "best_epoch": schema.nullable(schema.integer()),
            "wait_count": schema.integer(),
            "last": schema.nullable(schema.number()),
            "stopped_epoch": schema.nullable(schema.integer()),
            "best_weights": schema.nullable(
                schema.record(
                    {"raw": _weights, "averaged": schema.nullable(_weights)}, {"further": schema.mapping_of(_weights)}
                )
            ),
            "monitor": _monitor,
        }
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._reset()

    def _reset(self) -> None:
        self.stopping_rule = self.config.build_stopping_rule()
        self.stopped_epoch: int | None = None
        self._best: BestWeights | None = None
        self._score_count = self._missing_scores = 0
        self._monitor = Monitor(
            self.config.monitor, self.config.direction, strict=self.config.strict, warn=self._log_warning
        )

    @property
    def best_score(self) -> float | None:
        """Best score so far; the baseline before the first improvement."""
        return self.stopping_rule.best_score

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the best score, from 1; None before the first improvement."""
        return self.stopping_rule.best_epoch

    @property
    def wait_count(self) -> int:
        """Number of consecutive scores without improvement."""
        return self.stopping_rule.wait_count

    @property
    def needs(self) -> Needs:
        """Stops, and the end and the loss of training epochs if it monitors their means."""
        if not self.config.monitors_training:
            return Needs(requests=("stop",))
        is_loss = self.config.monitor in ("train/loss", "train_loss")
        return Needs(points=("after_train_epoch",), requests=("stop",), loss=is_loss)

    @property
    def requires_validation(self) -> bool:
        """Whether the metric is a result of validations."""
        return not self.config.monitors_training

    @property
    def required_metrics(self) -> list[str]:
        """Metric that every validation has to provide; empty unless `strict`, and for a training metric."""
        return [self.config.monitor] if self.config.strict and not self.config.monitors_training else []

    @property
    def best_metrics(self) -> Mapping[str, Direction | None]:
        """Metric whose best checkpoint the hook loads, with its direction; empty unless loading from a file."""
        if self.config.best_weights_source != "file":
            return {}
        return {self.config.monitor: "less" if self.config.direction == "min" else "greater"}

    def get_triggered_stages(self) -> list[str]:
        """Return the points at which the hook listens: either the end of validations or that of training epochs."""
        unused = "after_val" if self.config.monitors_training else "after_train_epoch"
        return [point for point in super().get_triggered_stages() if point != unused]

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the epochs and steps before which no stop is possible."""
        config = self.config
        first = config.start_from_epoch and config.start_from_epoch + 1
        return {
            "start_from_epoch": (first, "epoch"),
            "min_epochs": (config.min_epochs, "epoch"),
            "min_steps": (config.min_steps, "step"),
        }

    def check(self, run: Run) -> None:
        """Check that only one hook restores the best weights, and that the checkpoint hook keeps the best file.

        Raises:
            ConfigError: If another early stopping hook restores weights as well, or `restore_best_weights: file` is set
                and no hook writes checkpoints, or the checkpoint hook has `save_best: false`.
        """
        if run.mode == "train" and self.config.best_weights_source == "file":
            check_savers(run)
        self.check_unique(
            run,
            "restores weights",
            "Set `restore_best_weights: false` for one of them.",
            setting="restore_best_weights",
            get_value=lambda hook: hook.config.best_weights_source is not None,
        )

    # -- during training -------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        """Reset the state unless the run is resumed, and register the restore of the best weights."""
        if run.mode != "train":
            return
        if run.iters_done == 0:
            # The same hook object may have been used by a previous run.
            self._reset()
        if self.config.best_weights_source is not None and run.model is not None:
            # Not `after_train`: the last checkpoint is written after that event and needs the final weights.
            run.weights.restore_at_end(self._restore_best_weights)

    def before_train(self, run: Run) -> None:
        """Check that a best checkpoint will be available, and request a stop if the resumed run had stopped."""
        if self.config.best_weights_source == "file":
            # Not in `before_run`, where the checkpoint hook registers its service: the order depends on the priorities.
            check_saver(run.get("checkpoint_saver"))
        # The restored rule may be met already: with unchanged settings a stopped run does not train another iteration.
        if self._request_stop_if_due(run):
            message = "%s: the training is already complete: %r %s. Set a larger `patience`, or start from scratch."
            run.logger.warning(message, *self._log_args(), self.stopping_rule.reason)
        self._score_count, self._missing_scores = 0, self._count_missing_scores()

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Evaluate the mean of a training metric, unless the epoch was left early."""
        # Not the argument `metrics`, the means of one rank.
        if self.config.monitors_training and run.is_epoch_full:
            self._evaluate(run.epoch_means())

    def after_val(self, run: Run) -> None:
        """Request the results of a validation, also of values that other hooks log at the same point."""
        if run.mode == "train" and not run.sanity_checking and not self.config.monitors_training:
            run.request_results(self._evaluate)

    def _evaluate(self, metrics: Metrics) -> None:
        """Evaluate the latest score."""
        run = self.run
        score = self._monitor.get_score(metrics)
        # A metric that no validation provides is reported in ignored epochs as well.
        if score is None or run.current("epoch") <= self.config.start_from_epoch:
            return
        self._score_count += 1
        if self.stopping_rule.update(score, run.current("epoch")):
            # Copy now: the next iteration changes the weights in place.
            self._best = BestWeights.from_run(run) if self.config.best_weights_source == "memory" else None
        self.stopped_epoch = run.current("epoch") if self._request_stop_if_due(run) else None

    def after_run(self, run: Run) -> None:
        """Log a warning if the hook could not stop the run, because of the metric or the number of scores."""
        if run.mode != "train" or run.outcome != "finished" or not run.iters_done:
            return
        if self._monitor.full_name is None:
            message = "%s: no %s provided the metric %r; the hook had no effect."
            run.logger.warning(message, self.name, self.config.occasion, self.config.monitor)
        elif self._score_count < self._missing_scores:
            since = f" after its resume and {self.wait_count} without improvement" if run.resumed else ""
            message = "%s: `patience=%s` could not stop the run, which had %s %ss%s. Set a smaller number."
            arguments = self.name, self.config.patience, self._score_count, self.config.occasion, since
            run.logger.warning(message, *arguments)

    def cleanup(self) -> None:
        """Unregister the restore of the best weights."""
        if self._run is not None and self._run.mode == "train" and self.config.best_weights_source is not None:
            self._run.weights.restore_at_end(None)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state: stopping rule, stopped epoch, monitor, and the best weights if they are kept in memory."""
        return {
            **self.stopping_rule.state_dict(),
            "stopped_epoch": self.stopped_epoch,
            "best_weights": None if self._best is None else self._best._asdict(),
            "monitor": self._monitor.state_dict(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise if a state cannot be restored."""
        super().check_state(state)
        best, model = state["best_weights"], self.run.model
        if best is not None and model is not None:
            check_compatible(model, best["raw"])
            check_averages(model, best["averaged"] or {}, "state.best_weights.averaged")
            for name, weights in best.get("further", {}).items():
                check_averages(model, weights, f"state.best_weights.further.{name}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. A state of another metric or direction is ignored."""
        if not self._monitor.matches_state(state["monitor"]):
            return
        self.stopping_rule.load_state_dict(state)
        best = state["best_weights"]
        self.stopped_epoch, self._best = state["stopped_epoch"], None if best is None else BestWeights(**best)
        self._monitor.load_state_dict(state["monitor"])

    # -- helpers ---------------------------------------------------------------------------------

    def _log_warning(self, message: str) -> None:
        self.run.logger.warning("%s: %s", self.name, message)

    def _request_stop_if_due(self, run: Run) -> bool:
        """Request a stop if the stopping rule is met, and return whether it is."""
        reason = self.stopping_rule.reason
        is_early = run.epochs_done < self.config.min_epochs or run.steps_done < self.config.min_steps
        # The rule is evaluated again at the next validation: a metric that has recovered by then causes no stop.
        if reason is None or is_early:
            return False
        run.request_stop(f"{self.config.monitor} {reason}")
        return True

    def _count_missing_scores(self) -> int:
        """Return the smallest number of further scores after which `patience` can stop the run, see `min_scores`."""
        has_first = self.best_epoch is not None and self.config.baseline is None
        return max(self.config.min_scores - self.wait_count - has_first, 0)

    def _restore_best_weights(self) -> bool:
        """Load the best weights into the model, and return whether the weights were replaced."""
        if self.best_epoch is None:
            self.run.logger.info("%s: %r never improved; the model keeps its final weights.", *self._log_args())
            return False
        best = self._best or BestWeights.from_file(self.run, self.config.monitor)
        # Neither memory nor a best checkpoint contains the weights after a run with `restore_best_weights: false`.
        if best is None:
            message = "%s: no weights were kept for the best %r; the model keeps its final weights."
            self.run.logger.warning(message, *self._log_args())
            return False
        best.load(self.run)
        self.run.logger.info("%s: restored the weights of the best %r.", *self._log_args())
        return True

    def _log_args(self) -> tuple[str, str]:
        return self.name, self.config.monitor
