"""Validations that evaluators perform: each evaluator is a loader of a validation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ignite.engine import Engine, Events

from hookbus_ignite.outputs import select_numbers, to_evaluated_outputs

if TYPE_CHECKING:
    from hookbus_ignite.bridge import IgniteBridge
    from hookbus_ignite.handlers import Handlers


class Evaluations:
    """Emit the events of the validations that evaluators perform while the trainer runs.

    A validation begins with the first evaluator. It ends after each of them has run once, and before the training
    continues or a checkpoint is saved, since the model contains averaged weights during the validation.

    Args:
        bridge: Bridge of the trainer.
        evaluators: Evaluators by name.
    """

    def __init__(self, bridge: IgniteBridge, evaluators: Mapping[str, Engine]) -> None:
        self._bridge, self._evaluators = bridge, evaluators
        self._done: set[str] = set()  # evaluators that have run in the validation in progress
        self._running: tuple[str, Engine] | None = None  # evaluator in progress
        self._omitted: set[str] = set()  # metrics that were reported to be no numbers

    def attach(self, handlers: Handlers) -> None:
        """Add the handlers to the evaluators."""
        for name, evaluator in self._evaluators.items():
            handlers.add(evaluator, Events.STARTED, partial(self._on_started, name), first=True)
            handlers.add(evaluator, Events.ITERATION_STARTED, partial(self._on_iteration_started, name))
            handlers.add(evaluator, Events.ITERATION_COMPLETED, partial(self._on_iteration_completed, name), first=True)
            # After EPOCH_COMPLETED, at which metrics are computed.
            handlers.add(evaluator, Events.COMPLETED, partial(self._on_completed, name), first=True)

    def end(self) -> None:
        """End the validation if an evaluator has run, or has raised an exception that the user has handled."""
        if (self._done or self._running) and self._bridge.is_open:
            self._done.clear()
            self._running = None
            self._bridge.active_run.end_validation()

    def finish(self) -> None:
        """End the validation, also if the evaluator in progress has not called all of its handlers."""
        if self._running is not None:
            self._on_completed(*self._running)
        self.end()

    def _get_label(self, name: str) -> str | None:
        return name if len(self._evaluators) > 1 else None

    def _on_started(self, name: str, engine: Engine) -> None:
        if not self._bridge.is_open:
            return
        if name in self._done or (self._running is not None and self._running[0] == name):
            self.end()
        run = self._bridge.active_run
        if not run.validating:
            run.begin_validation()
        self._running = name, engine
        self._bridge.emit("before_val_epoch", dataloader_name=self._get_label(name))

    def _on_iteration_started(self, name: str, engine: Engine) -> None:
        self._bridge.emit("before_val_iter", batch=engine.state.batch, dataloader_name=self._get_label(name))

    def _on_iteration_completed(self, name: str, engine: Engine) -> None:
        outputs = to_evaluated_outputs(engine.state.output)
        self._bridge.emit(
            "after_val_iter", batch=engine.state.batch, outputs=outputs, dataloader_name=self._get_label(name)
        )

    def _on_completed(self, name: str, engine: Engine) -> None:
        if self._running is None or not self._bridge.is_open:  # `finish` may have ended the validation
            return
        self._running = None
        results = self._bridge.select_results(select_numbers(engine.state.metrics))
        self._report_omitted(name, engine.state.metrics)
        self._bridge.emit("after_val_epoch", metrics=results, dataloader_name=self._get_label(name))
        self._done.add(name)
        if len(self._done) == len(self._evaluators):
            self.end()

    def _report_omitted(self, name: str, metrics: Mapping[str, Any]) -> None:
        omitted = sorted(metrics.keys() - select_numbers(metrics).keys() - self._omitted)
        if omitted:
            self._omitted.update(omitted)
            self._bridge.active_run.logger.info(
                "evaluators[%r]: hooks do not receive the metrics that are no numbers: %s.", name, ", ".join(omitted)
            )
