"""Evaluation hooks: request validations on a schedule, with optional data, metrics, or validation function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookbus import Direction, Hook, Needs, Priority, Run, Schedule, Unit, every, hookimpl
from hookbus_eval.config import DEFAULT_METRIC, EvalConfig
from hookbus_eval.schedule import AtEnd, build_validation_schedule
from hookbus_eval.validation import CustomValidation


class EvalHook(Hook):
    """Schedule the validations of a run, in place of the validation of the Trainer after every epoch.

    The hook runs the validation of the run unless `dataloader`, `metrics` or `test_fn` replace it. With `save_best` the
    checkpoint hook keeps the best checkpoint by `metric`.
    """

    Config = EvalConfig
    priority = Priority.LOW
    schedules_validation = True
    config: EvalConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        # The common key `frequency` counts in the same unit as `interval`.
        self.unit = "epoch" if self.config.by_epoch else "iter"
        self._validation = CustomValidation(self.config, self.name) if self.config.replaces_validation else None

    @property
    def needs(self) -> Needs:
        """The end of epochs, if the interval counts them."""
        return Needs(points=("after_train_epoch",) if self.config.by_epoch else ())

    @property
    def validates_before_train(self) -> bool:  # type: ignore[override]  # depends on the settings
        """Whether `before_train` requests a validation."""
        return self.config.before_train

    @property
    def validation_fn(self) -> Callable[[Run], None] | None:
        """Validation that replaces the one of the run, None if the settings do not replace it."""
        return self._validation

    @property
    def best_metrics(self) -> Mapping[str, Direction | None]:
        """Metric whose best checkpoint is requested, with its direction; empty with `save_best: false`."""
        return {self.config.metric: self.config.rule} if self.config.save_best else {}

    @property
    def required_metrics(self) -> list[str]:
        """Metric that every validation has to provide: that of the best checkpoint, but not the default one."""
        # By value: a default and the same value written out have the same effect.
        return [] if self.config.metric == DEFAULT_METRIC else list(self.best_metrics)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the first epoch or iteration in which the interval changes."""
        unit: Unit = "epoch" if self.config.by_epoch else "iter"
        changes = self.config.dynamic_intervals
        return {"dynamic_intervals": (changes[0][0], unit)} if changes else {}

    def check(self, run: Run) -> None:
        """Check that the Trainer has the loaders that `dataloader` names.

        Raises:
            ConfigError: If it has no such loader.
        """
        if run.mode == "train" and run.trainer is not None and self._validation is not None:
            self._validation.check_loaders(run)

    def before_train(self, run: Run) -> None:
        """Check data and checkpoint hook, and request the validation before training."""
        if self._validation is not None:
            # Resolves the names of services now, so that a misspelled name fails before any epoch was trained.
            self._validation.get_loaders(run)
        self._warn_if_best_is_not_kept(run)
        # Not after a resume: this validation only checks the start of a new run.
        if self.config.before_train and run.iters_done == 0:
            run.request_validation("before training")

    @hookimpl(when=lambda config: _build_schedule(config, "epoch"))
    def after_train_epoch(self, run: Run) -> None:
        """Request a validation after this epoch, if it is due or the last one."""
        # The schedule covers `by_epoch` already, but the common key `when` replaces the schedules of both listeners.
        if self.config.by_epoch or self.config.when is None:
            run.request_validation(f"epoch {run.epochs_done}")

    @hookimpl(when=lambda config: _build_schedule(config, "iter"))
    def after_train_iter(self, run: Run) -> None:
        """Request a validation after this iteration."""
        if not self.config.by_epoch:
            run.request_validation(f"iteration {run.iters_done}")

    def _warn_if_best_is_not_kept(self, run: Run) -> None:
        metric, saver = self.config.metric, run.get("checkpoint_saver")
        # A custom saver without the attribute `keeps_best` is assumed to keep the best checkpoint.
        if not self.config.save_best or getattr(saver, "keeps_best", saver is not None):
            return
        cause = "no hook writes checkpoints" if saver is None else "the checkpoint hook keeps none"
        run.logger.warning("%s: the best checkpoint by %r is not kept because %s.", self.name, metric, cause)


class DistEvalHook(EvalHook):
    """Alias of `EvalHook` for distributed training: both evaluate each sample once, whatever the world size."""


def _build_schedule(config: EvalConfig, unit: Unit) -> Schedule:
    own: Unit = "epoch" if config.by_epoch else "iter"
    # The unit is a setting, but listeners are bound to a point: only one of the two is due at the interval.
    due = every(None, unit=unit)
    if unit == own:
        due = build_validation_schedule(config.interval, config.start, config.dynamic_intervals, unit)
    # The end of the last epoch also ends a run whose iterations are not known in advance.
    if config.at_end and unit in (own, "epoch"):
        end: Schedule = AtEnd(unit, is_fallback=unit != own)
        return due | (end & every(1, start=config.start, unit=own) if config.start > 1 else end)
    return due
