"""Steps schedulers of learning rates and momenta."""

from __future__ import annotations

import warnings
from typing import Any

from hookbus import Hook, Metrics, Run
from hookbus.errors import CheckpointError, ConfigError, HookWarning, MetricError
from hookbus_schedule.config import ParamSchedulerConfig, SchedulerConfig
from hookbus_schedule.stepping import Stepped, see_that_it_fits, stepped

__all__ = ["ParamSchedulerHook"]


class ParamSchedulerHook(Hook):
    """Steps schedulers per update, per epoch, or with a metric after each validation, and keeps their state.

    The Trainer steps its own scheduler, and this hook steps those that it is given: nothing is stepped twice. Without
    any, it steps that of a loop of one's own, which `bus.run(scheduler=...)` names and checkpoints keep.
    """

    Config = ParamSchedulerConfig
    makes_requests = False
    config: ParamSchedulerConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._schedulers: list[Stepped] | None = None
        self._loaded: list[dict[str, Any]] | None = None  # a state that waits for the schedulers
        self._missed: set[str] = set()

    def check(self, run: Run) -> None:
        """See that there is something to step, that nobody else steps it, and that settings of schedulers fit."""
        if run.mode == "train":
            _check_owner(run, self.config)
            for each in self.config.schedulers:
                see_that_it_fits(each)

    def before_run(self, run: Run) -> None:
        """Build the schedulers, before a checkpoint brings their state.

        Raises:
            ConfigError: one cannot be built.
        """
        if run.mode != "train":
            return
        self._missed = set()
        if self._schedulers is None or run.iters_done == 0:
            self._schedulers = self._made(run)
        if self._loaded is not None:
            self.load_state_dict({"schedulers": self._loaded})

    def before_train(self, run: Run) -> None:
        """See that there are validations, where a scheduler needs them.

        Raises:
            ConfigError: there are none.
        """
        waiting = sorted({each.monitor for each in self._schedulers or () if each.monitor is not None})
        if waiting and not run.validations.can_make("val"):
            raise ConfigError(
                [
                    f"hook {self.name!r} steps a scheduler with {', '.join(waiting)} after each validation, and there "
                    "is none: give val_loader= to the Trainer, or validate= to bus.run."
                ]
            )

    def after_optimizer_step(self) -> None:
        """Step those per update."""
        self._step("step")

    def after_train_iter(self, run: Run) -> None:
        """The same where there is no optimizer, so that each iteration counts as an update."""
        if run.clock.counts_iterations:
            self._step("step")

    def after_train_epoch(self, run: Run) -> None:
        """Step those per epoch, unless it was cut."""
        if run.epoch_complete:
            self._step("epoch")

    def after_val(self, run: Run, metrics: Metrics) -> None:
        """Step those with a metric; a metric that is not there is one warning."""
        if run.mode != "train" or run.sanity_checking:
            return
        for each in self._schedulers or ():
            if each.monitor is not None:
                try:
                    each.scheduler.step(metrics[each.monitor])
                except MetricError as error:
                    self._miss(each.monitor, str(error))

    def state_dict(self) -> dict[str, Any]:
        """The states of the schedulers."""
        if self._schedulers is None:
            return {"schedulers": self._loaded or []}
        return {
            "schedulers": [each.scheduler.state_dict() for each in self._schedulers] if self.config.schedulers else []
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave.

        Raises:
            CheckpointError: there is another number of schedulers now.
        """
        states = state["schedulers"]
        if self._schedulers is None:
            self._loaded = states
            return
        self._loaded, own = None, self._schedulers if self.config.schedulers else []
        if len(states) != len(own):
            raise CheckpointError(
                f"hook {self.name!r}: the checkpoint holds {len(states)} schedulers, and there are {len(own)} now."
            )
        for each, saved in zip(own, states, strict=True):
            each.scheduler.load_state_dict(saved)

    # -- inside ----------------------------------------------------------------------------------

    def _made(self, run: Run) -> list[Stepped]:
        given = self.config.schedulers or [SchedulerConfig(scheduler=run.scheduler)]
        return [stepped(each, self.config.interval, _optimizer_of(run, each)) for each in given]

    def _step(self, interval: str) -> None:
        for each in self._schedulers or ():
            if each.monitor is None and each.interval == interval:
                each.scheduler.step()

    def _miss(self, monitor: str, problem: str) -> None:
        if monitor not in self._missed:
            self._missed.add(monitor)
            warnings.warn(f"hook {self.name!r} waits for its metric. {problem} Set monitor.", HookWarning, stacklevel=2)


def _check_owner(run: Run, config: ParamSchedulerConfig) -> None:
    own = run.scheduler
    if run.trainer is not None and own is not None:
        if not config.schedulers or any(each.scheduler is own for each in config.schedulers):
            raise ConfigError(
                [
                    f"the Trainer steps its scheduler ({type(own).__name__}) itself, so it would be "
                    "stepped twice. Leave the hook out, or give the scheduler to the hook alone."
                ]
            )
    elif own is None and not config.schedulers:
        raise ConfigError(["there is nothing to step: say schedulers, or give scheduler= to bus.run."])


def _optimizer_of(run: Run, given: SchedulerConfig) -> Any:
    """The optimizer whose groups a scheduler changes."""
    if given.type is None:
        return None
    return run.require("optimizer" if given.optimizer is None else given.optimizer)
