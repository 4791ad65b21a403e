"""EMA hook: update the average after each optimizer step, and load it into the model for validation and test."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from hookbus import Hook, Priority, Run, Unit, every, hookimpl
from hookbus.checkpoint import check_averages, schema
from hookbus.distributed import clean_names
from hookbus.errors import HookError
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig
from hookbus_ema.model_average import (
    check_average_file,
    get_unwrapped_model,
    is_initialized,
    report_unaveraged,
    restore_average,
    start_average,
    sync_with_model,
)


class EMAHook(Hook):
    """Maintain an exponential moving average of the weights, which validations and tests evaluate.

    The average is updated once per executed optimizer step: not per micro-batch of an accumulation, and not for steps
    that a gradient scaler skipped. In a loop without an optimizer each iteration counts as a step. Checkpoints contain
    the raw weights as `state_dict` and the averaged weights as `ema_state_dict`, whichever of them is in the model at
    the time of the save.
    """

    Config = EMAConfig
    makes_requests = False
    priority = Priority.ABOVE_NORMAL
    config: EMAConfig
    # With `resume_from`, the average may have more steps than the run.
    state_schema = schema.record(
        {"steps": schema.integer(), "averaged": schema.mapping_of(schema.tensor())},
        {"begun_at": schema.integer(-schema.MAX_COUNT)},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._average: ExponentialMovingAverage | None = None
        # A loaded state, stored until the model is available.
        self._pending_state: dict[str, Any] | None = None
        # The steps of the run at the start of the average: the warm-up counts from there.
        self._start_step = 0
        self._reported: set[str] = set()  # names of the tensors that cannot be averaged

    @property
    def average(self) -> ExponentialMovingAverage | None:
        """Average of the weights, None before training. `state_dict` and `load_state_dict` save and restore it."""
        if self._pending_state is not None and self._run is not None and self._run.model is not None:
            state, self._pending_state = self._pending_state, None
            self._track(restore_average(get_unwrapped_model(self._run), self.config, state, self.name))
            self._start_step = state["begun_at"]
        return self._average

    def check(self, run: Run) -> None:
        """Check that the run has a model and one EMA hook, and that a new run can start from `resume_from`.

        Raises:
            HookError: If the run has no model.
            ConfigError: If there is another EMA hook.
            CheckpointError: If the file cannot be read or contains no matching averages.
        """
        if run.model is None:
            raise HookError("requires the model of the run, got None. Pass `model` to the run.")
        self.check_unique(run, "averages the weights", "Use only one of them.")
        # A run that resumes restores its own average.
        is_new = run.mode == "train" and not run.may_resume and not run.iters_done
        if is_new and self.config.resume_from is not None and is_initialized(model := get_unwrapped_model(run)):
            check_average_file(model, Path(self.config.resume_from))

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the length of the warm-up."""
        return {"warm_up": (self.config.warm_up, "step")}

    def before_run(self, run: Run) -> None:
        """Register as the provider of averaged weights. A run that starts at iteration 0 discards an old average."""
        if run.iters_done == 0:
            self._average, self._reported = None, set()
        elif self._average is not None and not self._average.averages_model(get_unwrapped_model(run)):
            # A second run continues with a rebuilt model: restore the averages by name instead of by identity.
            self.load_state_dict(self.state_dict())
        run.weights.provide(self)

    def before_train(self, run: Run) -> None:
        """Start the average at the current weights or at the averages of `resume_from`."""
        # Lazy parameters have no values before the first forward; their average starts at the first optimizer step.
        if is_initialized(get_unwrapped_model(run)):
            self._start(run)

    @hookimpl(frequency=False)
    def before_train_epoch(self) -> None:
        """Include tensors that were added to the model since the last epoch."""
        self._sync_with_model()

    @hookimpl(frequency=False)
    def before_optimizer_step(self, run: Run) -> None:
        """Wait for an update on another thread, which reads the weights that are about to change."""
        # Starts the average here if a loop takes its first step before it emits any event.
        self._start(run).wait()

    @hookimpl(when=every("interval"))
    def after_optimizer_step(self, run: Run) -> None:
        """Update the average."""
        if len(run.optimizers) <= 1:
            self._update(run)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Update the average in a loop without an optimizer or with several, once per iteration."""
        # The step of one optimizer may be followed by that of another one, which belongs to the same update.
        if len(run.optimizers) > 1 and run.stepped:
            self._update(run)
        if run.counts_iterations:
            self._update(run)
            # Without an optimizer no event precedes the next change of the weights, so the update cannot overlap.
            self.wait()

    def cleanup(self) -> None:
        """Wait for an update in progress and shut down its thread."""
        if self._average is not None:
            self._average.close()

    # -- provider of averaged weights ------------------------------------------------------------

    def raw(self) -> dict[str, Tensor] | None:
        """Return the raw weights while the averages are in the model; None while the model contains the raw weights."""
        raw = None if self._average is None else self._average.raw()
        # The average covers tensors only; extra state of modules is read from the model.
        return raw and {**get_unwrapped_model(self.run).state_dict(), **raw}

    def averaged(self) -> dict[str, Tensor] | None:
        """Return the averaged weights by name, None before training. Tensors are references, not copies."""
        average = self._sync_with_model()
        return None if average is None else average.averaged()

    def applied(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the model contains the averages; a no-op before training."""
        if (average := self._sync_with_model()) is None:
            return nullcontext()
        self.run.weights.wait_for_readers()
        return average.applied()

    def wait(self) -> None:
        """Block until no update is in progress on another thread."""
        if self._average is not None:
            self._average.wait()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, the step of the last update, and the step of the run at the start of the average."""
        if self._pending_state is not None:
            return self._pending_state
        if self._average is None:
            return {"steps": 0, "averaged": {}, "begun_at": self._start_step}
        state = self._average.state_dict()
        averaged = clean_names(get_unwrapped_model(self.run), state["averaged"])
        return {**state, "averaged": averaged, "begun_at": self._start_step}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise if a state cannot be restored."""
        super().check_state(state)
        if self.run.model is not None:
            check_averages(self.run.model, state["averaged"], "state.averaged")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, as soon as the model is available.

        Raises:
            CheckpointError: If the averages do not match the model. Raised at the first access to the average.
        """
        # A state from before the first update has no averages; the average then starts at the current weights.
        self._average, self._pending_state = None, state if state["averaged"] else None

    # -- helpers ---------------------------------------------------------------------------------

    def _start(self, run: Run) -> ExponentialMovingAverage:
        average = self.average
        if average is None:
            average = self._track(start_average(get_unwrapped_model(run), self.config, run.logger))
            # `resume_from` sets the steps of the average, so that the warm-up continues.
            self._start_step = run.steps_done - average.steps
        return average

    def _sync_with_model(self) -> ExponentialMovingAverage | None:
        """Synchronize the average with the current tensors of the model, and return it; None before training."""
        if (average := self.average) is None:
            return None
        return self._track(sync_with_model(average, get_unwrapped_model(self.run), self.config, self.run.logger))

    def _track(self, average: ExponentialMovingAverage) -> ExponentialMovingAverage:
        """Use an average from now on, and log which tensors cannot be averaged, once each."""
        self._average = average
        report_unaveraged(average, self._reported, self.run.logger, self.name)
        return average

    def _update(self, run: Run) -> None:
        self._start(run).update(run.steps_done - self._start_step)
