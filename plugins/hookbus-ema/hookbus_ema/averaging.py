"""Base class of hooks that average the weights: provider of averaged weights, and state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from hookbus import Hook, Priority, Run, hookimpl
from hookbus.checkpoint import check_averages, schema
from hookbus.distributed import clean_names
from hookbus.errors import ConfigError, HookError
from hookbus_ema.average import WeightAverage
from hookbus_ema.model_average import get_unwrapped_model, report_unaveraged, restore_average, sync_with_model


class AveragingHook(Hook):
    """Provide an average of the weights to validations, tests and checkpoints. Subclasses start and update it.

    Checkpoints contain the raw weights as `state_dict` and the averaged weights as `ema_state_dict`, whichever of them
    is in the model at the time of the save. Before the average starts, validations and tests use the raw weights.
    """

    makes_requests = False
    averages_weights = True
    priority = Priority.ABOVE_NORMAL
    # With `resume_from` of an EMA, the average may have more steps than the run.
    state_schema = schema.record(
        {"steps": schema.integer(), "averaged": schema.mapping_of(schema.tensor())},
        {"begun_at": schema.integer(-schema.MAX_COUNT)},
    )

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._average: WeightAverage | None = None
        # A loaded state, stored until the model is available.
        self._pending_state: dict[str, Any] | None = None
        # The steps of the run at the start of the average.
        self._start_step = 0
        self._reported: set[str] = set()  # names of the tensors that cannot be averaged

    def build_average(self, model: nn.Module) -> WeightAverage:
        """Create an average of a model that starts at its current weights."""
        raise NotImplementedError

    @property
    def average(self) -> WeightAverage | None:
        """Average of the weights, None before its start. `state_dict` and `load_state_dict` save and restore it."""
        if self._pending_state is not None and self._run is not None and self._run.model is not None:
            state, self._pending_state = self._pending_state, None
            model = get_unwrapped_model(self._run)
            self._track(restore_average(self.build_average(model), model, state, self.name))
            self._start_step = state["begun_at"]
        return self._average

    def check(self, run: Run) -> None:
        """Check that the run has a model, and that no loader has the name of the hook.

        Raises:
            HookError: If the run has no model.
            ConfigError: If the results of a loader would have the names of those of the average.
        """
        if run.model is None:
            raise HookError("requires the model of the run, got None. Pass `model` to the run.")
        for key in ("val_loader", "test_loader"):
            loaders = getattr(run, key)
            if isinstance(loaders, Mapping) and self.name in loaders:
                raise ConfigError(
                    f"the results of the average and of a loader of {key} would have the same names, got {self.name!r} "
                    "for both. Set another `name`."
                )

    def before_run(self, run: Run) -> None:
        """Register as the provider of averaged weights. A run that starts at iteration 0 discards an old average."""
        if run.iters_done == 0:
            self._average, self._reported = None, set()
        elif self._average is not None and not self._average.averages_model(get_unwrapped_model(run)):
            # A second run continues with a rebuilt model: restore the averages by name instead of by identity.
            self.load_state_dict(self.state_dict())
        run.weights.provide(self)

    @hookimpl(frequency=False)
    def before_train_epoch(self) -> None:
        """Include tensors that were added to the model since the last epoch."""
        self._sync_with_model()

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
        """Return the averaged weights by name, None before the start. Tensors are references, not copies."""
        average = self._sync_with_model()
        return None if average is None else average.averaged()

    def applied(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the model contains the averages; a no-op before the start."""
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

    def _sync_with_model(self) -> WeightAverage | None:
        """Synchronize the average with the current tensors of the model, and return it; None before its start."""
        if (average := self.average) is None:
            return None
        model = get_unwrapped_model(self.run)
        return self._track(sync_with_model(average, model, self.build_average, self.run.logger))

    def _track(self, average: WeightAverage) -> WeightAverage:
        """Use an average from now on, and log which tensors cannot be averaged, once each."""
        self._average = average
        report_unaveraged(average, self._reported, self.run.logger, self.name)
        return average
