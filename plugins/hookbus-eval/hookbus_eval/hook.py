"""The hooks: ask for validations when they are due, and say what is judged in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookbus import Hook, Priority, Run, hookimpl
from hookbus.lifecycle import Unit
from hookbus.rules import Rule
from hookbus.when import Schedule, every
from hookbus_eval.config import EvalConfig
from hookbus_eval.own import OwnValidation
from hookbus_eval.stages import validations_due

__all__ = ["DistEvalHook", "EvalHook"]


class EvalHook(Hook):
    """Decides when to validate; the Trainer then does not validate by itself.

    The validation is the run's own, unless the settings name other data, further metrics or a function in its place.
    With `save_best` the checkpoint hook keeps the best file of `metric`.
    """

    Config = EvalConfig
    priority = Priority.LOW
    schedules_validation = True
    config: EvalConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.unit = "epoch" if self.config.by_epoch else "iter"
        self._own = OwnValidation(self.config, self.name) if self.config.brings_validation else None

    @property
    def validates_with(self) -> Callable[[Run], None] | None:
        """The validation in the place of the run's, None for the run's own."""
        return self._own

    @property
    def keeps_best_of(self) -> Mapping[str, Rule | None]:
        """The metric whose best file is wanted, if anything was said about it."""
        metric = self.config.best_metric
        return {} if metric is None else {metric: self.config.rule}

    def before_train(self, run: Run) -> None:
        """See that there are data and somebody who keeps the best; ask for the validation before training."""
        if self._own is not None:
            self._own.loaders(run)
        self._see_who_keeps_the_best(run)
        if self.config.before_train and run.iters_done == 0:
            run.request_validation("before training")

    @hookimpl(when=lambda config: _schedule(config, "epoch"))
    def after_train_epoch(self, run: Run) -> None:
        """Ask for a validation after this epoch."""
        if self.config.by_epoch:  # a `when` of the file replaces the schedules of both listeners
            run.request_validation(f"epoch {run.epochs_done}")

    @hookimpl(when=lambda config: _schedule(config, "iter"))
    def after_train_iter(self, run: Run) -> None:
        """Ask for a validation after this iteration."""
        if not self.config.by_epoch:
            run.request_validation(f"iteration {run.iters_done}")

    def _see_who_keeps_the_best(self, run: Run) -> None:
        metric, saver = self.config.best_metric, run.get("saver")
        if metric is None or getattr(saver, "keeps_best", saver is not None):
            return
        why = "no hook here writes checkpoints" if saver is None else "the checkpoint hook has save_best: false"
        run.logger.warning("%s: %s, so no file of the best %r is kept.", self.name, why, metric)


class DistEvalHook(EvalHook):
    """The same under the name of the distributed one: with several processes each sample is judged once."""


def _schedule(config: EvalConfig, unit: Unit) -> Schedule:
    if config.by_epoch != (unit == "epoch"):
        return every(None, unit=unit)
    return validations_due(config.interval, config.start, config.dynamic_intervals, unit)
