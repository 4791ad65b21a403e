"""The hook: updates the average after each optimizer step, and puts it into the model for validations and tests."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from hookbus import Hook, Priority, every, hookimpl
from hookbus.errors import HookError
from hookbus.run import Run
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig
from hookbus_ema.following import followed, has_shape, model_of
from hookbus_ema.resume import begin, put_back

__all__ = ["EMAHook"]


class EMAHook(Hook):
    """Keeps a moving average of the weights, which validations and tests use.

    There is one update per optimizer step that was made: none for a micro-batch of an accumulation, none for a step
    that a gradient scaler left out. Where the loop has no optimizer, each iteration counts as a step. Files hold the
    raw weights as `state_dict` and the averaged ones as `ema_state_dict`, whatever is in the model at that moment.
    """

    Config = EMAConfig
    makes_requests = False
    priority = Priority.ABOVE_NORMAL
    config: EMAConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._average: ExponentialMovingAverage | None = None
        self._loaded: dict[str, Any] | None = None  # a state that waits for the model
        self._begun_at = 0  # the steps of the run when averaging began

    @property
    def average(self) -> ExponentialMovingAverage | None:
        """The average, None before training; `state_dict` and `load_state_dict` keep it."""
        if self._loaded is not None and self._run is not None and self._run.model is not None:
            state, self._loaded = self._loaded, None
            self._average = put_back(model_of(self._run), self.config, state, self.name)
            self._begun_at = state["begun_at"]
        return self._average

    def check(self, run: Run) -> None:
        """See that there is a model."""
        if run.model is None:
            raise HookError("it averages the weights of a model: give model= to the run.")

    def before_run(self, run: Run) -> None:
        """Offer the averages to the run. A run that begins at zero has none yet."""
        if run.iters_done == 0:
            self._average = None
        elif self._average is not None and not self._average.is_of(model_of(run)):
            self.load_state_dict(self.state_dict())
        run.weights.provide(self)
        run.around_validation(self.applied)

    def before_train(self, run: Run) -> None:
        """Start at the weights as they are now, or at the averages of `resume_from`; lazy ones at the first step."""
        if has_shape(model_of(run)):
            self._started(run)

    def before_train_epoch(self) -> None:
        """The model may have got other tensors since the last epoch."""
        self._followed()

    def before_optimizer_step(self, run: Run) -> None:
        """The weights are about to change: an update on another thread has to be done with them."""
        self._started(run).wait()  # a loop may make its first step before it emits anything

    @hookimpl(when=every("interval"))
    def after_optimizer_step(self, run: Run) -> None:
        """Update the average."""
        self._update(run)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Update the average where there is no optimizer, so that each iteration counts as a step."""
        if run.clock.counts_iterations:
            self._update(run)
            self.wait()

    def cleanup(self) -> None:
        """Leave no update running, and no thread."""
        if self._average is not None:
            self._average.close()

    # -- what the run and users ask for ----------------------------------------------------------

    def raw(self) -> dict[str, Tensor] | None:
        """The raw weights while the averages are in the model; None while the model holds the raw ones."""
        kept = None if self._average is None else self._average.raw()
        return kept and {**model_of(self.run).state_dict(), **kept}

    def averaged(self) -> dict[str, Tensor] | None:
        """The averaged weights by name, None before training. References, not copies."""
        average = self._followed()
        return None if average is None else average.averaged()

    def applied(self) -> AbstractContextManager[None]:
        """A context in which the model holds the averages, for use by hand; before training it does nothing."""
        if (average := self._followed()) is None:
            return nullcontext()
        self.run.weights.wait_for_readers()
        return average.applied()

    def wait(self) -> None:
        """Return once no update is running on another thread."""
        if self._average is not None:
            self._average.wait()

    def state_dict(self) -> dict[str, Any]:
        """The averages, the step of the last update, and the step of the run at which averaging began."""
        if self._loaded is not None:
            return self._loaded
        state = {"steps": 0, "averaged": {}} if self._average is None else self._average.state_dict()
        return {**state, "begun_at": self._begun_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; the averages are put in place when the model is there.

        Raises:
            CheckpointError: as soon as the averages are asked for, if they are not those of the model.
        """
        self._average, self._loaded = None, state if state["averaged"] else None

    # -- inside ----------------------------------------------------------------------------------

    def _started(self, run: Run) -> ExponentialMovingAverage:
        average = self.average
        if average is None:
            average = self._average = begin(model_of(run), self.config, run.logger)
            self._begun_at = run.steps_done - average.steps
        return average

    def _followed(self) -> ExponentialMovingAverage | None:
        """The average of the tensors that the model has now, None before training."""
        if (average := self.average) is not None:
            self._average = followed(average, model_of(self.run), self.config, self.run.logger)
        return self._average

    def _update(self, run: Run) -> None:
        self._started(run).update(run.steps_done - self._begun_at)
