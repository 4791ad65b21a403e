"""Stepping of learning rate and momentum schedulers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from hookbus import Hook, Metrics, Needs, Priority, Run, Unit, hookimpl
from hookbus.checkpoint import check_scheduler_steps, get_first_changes, load_scheduler, schema
from hookbus.errors import CheckpointError, ConfigError, MetricError
from hookbus_schedule.accumulation import AccumulationHook
from hookbus_schedule.config import ParamSchedulerConfig, SchedulerConfig
from hookbus_schedule.scheduler_entries import (
    MomentumSchedule,
    SchedulerEntry,
    build_scheduler_entry,
    check_scheduler_config,
    copy_optimizer,
    get_monitor,
)


class ParamSchedulerHook(Hook):
    """Step schedulers per optimizer step, per epoch, or with a metric after each validation, and save their state.

    The hook steps the configured schedulers; the Trainer steps its own scheduler. If none is configured, the hook steps
    the scheduler that a custom loop passes to `bus.run(scheduler=...)`, whose state is part of the run.
    """

    Config = ParamSchedulerConfig
    makes_requests = False
    config: ParamSchedulerConfig
    state_schema = schema.record({"schedulers": schema.list_of(schema.mapping_of(schema.any_value))})

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._schedulers: list[SchedulerEntry] | None = None
        self._pending_states: list[dict[str, Any]] | None = None  # state that is loaded before the schedulers exist
        self._missing_metrics: set[str] = set()
        self._trial_monitors: list[str | None] = []  # of the schedulers that `check` has built

    @property
    def needs(self) -> Needs:
        """An optimizer for the schedulers to build, and the end of epochs for those that it steps then."""
        schedulers = self.config.schedulers
        by_count = [part for part in schedulers if get_monitor(part) is None]
        by_epoch = any((part.interval or self.config.interval) == "epoch" for part in by_count)
        return Needs(
            points=("after_train_epoch",) if by_epoch else (),
            optimizer=any(part.type is not None for part in schedulers),
        )

    @property
    def schedules_learning_rate(self) -> bool:  # type: ignore[override]
        """Whether a scheduler sets the learning rate; the scheduler of a loop is assumed to do so."""
        return not self.config.schedulers or any(part.parameter == "lr" for part in self.config.schedulers)

    @property
    def lr_schedulers(self) -> list[Any]:
        """Schedulers of the learning rate, once they are built."""
        return [
            entry.scheduler for entry in self._schedulers or () if not isinstance(entry.scheduler, MomentumSchedule)
        ]

    @property
    def required_metrics(self) -> list[str]:
        """Metrics that the schedulers monitor; before `check`, those that are known from the configuration."""
        monitors = [*map(get_monitor, self.config.schedulers), *self._trial_monitors]
        if self._schedulers is not None:
            monitors = [entry.monitor for entry in self._schedulers]
        return sorted({monitor for monitor in monitors if monitor is not None})

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the epochs or optimizer steps in which the schedulers first change a value, once they are built."""
        return {
            setting: (number, entry.interval)
            for entry in self._schedulers or ()
            if entry.monitor is None
            for setting, number in get_first_changes(entry.scheduler).items()
        }

    def check(self, run: Run) -> None:
        """Check that there is a scheduler to step, that only this hook steps it, and that it can be built and stepped.

        Raises:
            ConfigError: If one of these conditions is not met.
        """
        if run.mode != "train":
            return
        _check_owner(run, self.config)
        self._check_other_hooks(run)
        for scheduler in self.config.schedulers:
            check_scheduler_config(scheduler)
        entries = self._build_trials(run)
        self._trial_monitors = [entry.monitor for entry in entries]
        # The state of a checkpoint determines the length of a scheduler.
        if not run.may_resume:
            _check_lengths(run, entries)

    def before_run(self, run: Run) -> None:
        """Build the schedulers.

        Raises:
            ConfigError: If a scheduler cannot be built.
        """
        if run.mode != "train":
            return
        self._missing_metrics = set()
        # Before a checkpoint is loaded: schedulers change the learning rate when they are built, and the restored
        # optimizer state overwrites it. A second training of the same run continues with the existing schedulers.
        if self._schedulers is None or run.iters_done == 0:
            self._schedulers = self._build_schedulers(run)
        if self._pending_states is not None:
            self.load_state_dict({"schedulers": self._pending_states})

    # Last, because hooks may change the batch size, and thereby the number of steps.
    @hookimpl(priority=Priority.LOWEST)
    def before_train(self, run: Run) -> None:
        """Check that the schedulers accept all steps, also those of a run that has resumed.

        Raises:
            ConfigError: If one of them is too short.
        """
        _check_lengths(run, self._schedulers or ())

    @hookimpl(frequency=False)
    def after_optimizer_step(self, optimizer: Any) -> None:
        """Step the schedulers of the optimizer with the interval "step"."""
        self._step_schedulers("step", optimizer)

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Step the schedulers with the interval "step", if the run has no optimizer."""
        # Without a known optimizer no optimizer event is emitted, and each iteration counts as an optimizer step.
        if run.counts_iterations:
            self._step_schedulers("step")

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Step the schedulers with the interval "epoch", unless the epoch was truncated."""
        if run.epoch_complete:
            self._step_schedulers("epoch")

    def after_val(self, run: Run) -> None:
        """Request the results of a validation if a scheduler monitors a metric."""
        if run.mode == "train" and not run.sanity_checking and any(e.monitor for e in self._schedulers or ()):
            run.request_results(self._step_monitored)

    def _step_monitored(self, metrics: Metrics) -> None:
        """Step the schedulers that monitor a metric; a missing metric is a warning once per run."""
        for entry in self._schedulers or ():
            try:
                if entry.monitor is not None:
                    entry.scheduler.step(metrics[entry.monitor])
            except MetricError as error:
                self._warn_missing_metric(str(entry.monitor), str(error))

    def after_run(self, run: Run) -> None:
        """Log a warning if a scheduler was never stepped, because the run had no validation."""
        if run.mode != "train" or run.outcome != "finished" or not run.iters_done:
            return
        for entry in self._schedulers or ():
            # A metric that a validation did not provide was reported there.
            is_reported = entry.monitor in self._missing_metrics
            if entry.monitor is not None and not is_reported and getattr(entry.scheduler, "last_epoch", None) == 0:
                message = "%s: no validation provided %r; its scheduler was never stepped."
                run.logger.warning(message, self.name, entry.monitor)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the configured schedulers."""
        if self._schedulers is None:
            return {"schedulers": self._pending_states or []}
        # The scheduler of a custom loop is saved by the run.
        entries = self._schedulers if self.config.schedulers else []
        return {"schedulers": [entry.scheduler.state_dict() for entry in entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`.

        Raises:
            CheckpointError: If the number of schedulers has changed.
        """
        states = state["schedulers"]
        if self._schedulers is None:
            self._pending_states = states
            return
        self._pending_states, entries = None, self._schedulers if self.config.schedulers else []
        if len(states) != len(entries):
            raise CheckpointError(
                f"hook {self.name!r}: the number of schedulers must be that of the checkpoint ({len(states)}), got "
                f"{len(entries)}. Restore the setting `schedulers`."
            )
        for entry, saved in zip(entries, states, strict=True):
            for message in load_scheduler(entry.scheduler, saved):
                self.run.logger.warning("hook %r: %s", self.name, message)

    def _build_schedulers(self, run: Run) -> list[SchedulerEntry]:
        configs = _get_configs(run, self.config)
        return [build_scheduler_entry(config, self.config.interval, _get_optimizer(run, config)) for config in configs]

    def _build_trials(self, run: Run) -> list[SchedulerEntry]:
        """Build the schedulers on copies of their optimizers; a second training continues with the existing ones."""
        if self._schedulers is not None and run.iters_done:
            return self._schedulers
        entries = []
        for config in _get_configs(run, self.config):
            optimizer = copy_optimizer(_find_optimizer(run, config))
            if config.type is None or optimizer is not None:
                entries.append(build_scheduler_entry(config, self.config.interval, optimizer))
        return entries

    def _check_other_hooks(self, run: Run) -> None:
        own = get_scheduled(run, self.config)
        for other in run.bus.hooks.values():
            if other is not self and isinstance(other, ParamSchedulerHook) and own & get_scheduled(run, other.config):
                names = " and ".join(sorted(repr(hook.name) for hook in (self, other)))
                raise ConfigError(
                    f"hooks {names} schedule the same hyperparameter of the same optimizer, and the result depends "
                    "on their order. Set `schedulers` of one hook to a list of all schedulers."
                )

    def _step_schedulers(self, interval: str, optimizer: Any = None) -> None:
        """Step the schedulers with an interval; with several optimizers, those of one optimizer only."""
        is_only = optimizer is None or len(self.run.optimizers) == 1
        for entry in self._schedulers or ():
            if entry.monitor is None and entry.interval == interval and (is_only or entry.is_of(optimizer)):
                entry.scheduler.step()

    def _warn_missing_metric(self, monitor: str, problem: str) -> None:
        if monitor not in self._missing_metrics:
            self._missing_metrics.add(monitor)
            self.run.logger.warning(
                "%s: a scheduler is not stepped without its metric. %s Set `monitor`.", self.name, problem
            )


def _check_lengths(run: Run, entries: Iterable[SchedulerEntry]) -> None:
    """Raise if a scheduler does not accept the remaining steps of the run; one that monitors a metric has no length."""
    for entry in entries:
        steps = _count_remaining_steps(run, entry.interval)
        if entry.monitor is None and steps is not None:
            check_scheduler_steps(entry.scheduler, steps)


def _count_remaining_steps(run: Run, interval: Literal["step", "epoch"]) -> int | None:
    """Return the smallest number of times that the run steps a scheduler from now on; None if it is unknown."""
    done, limit, per_step = run.epochs_done, run.limit("epoch"), 1
    if interval == "step":
        done, limit = run.iters_done, run.limit("iter")
        # A custom loop may accumulate any number of iterations, and a hook steps several optimizers as it likes.
        accumulate = run.accumulate if len(run.optimizers) == 1 else None
        per_step = int(run.counts_iterations) if accumulate is None else accumulate
        scheduled = [hook.config.schedule for hook in run.bus.hooks.values() if isinstance(hook, AccumulationHook)]
        # The largest number of a schedule makes the fewest steps.
        if per_step:
            per_step = max(per_step, *(count for schedule in scheduled for count in schedule.values()), 1)
    return max(limit - done, 0) // per_step if limit is not None and per_step else None


def _check_owner(run: Run, config: ParamSchedulerConfig) -> None:
    own = run.scheduler
    if run.trainer is not None and own is not None:
        owned = {id(part): part for part in run.schedulers.values()}
        if not config.schedulers or any(id(entry.scheduler) in owned for entry in config.schedulers):
            names = ", ".join(type(part).__name__ for part in owned.values())
            raise ConfigError(
                f"the Trainer already steps its scheduler ({names}), so it would be stepped twice. "
                "Remove the hook, or pass the scheduler to the hook only."
            )
    elif own is None and not config.schedulers:
        raise ConfigError("there is no scheduler to step. Set `schedulers`, or pass `scheduler` to `bus.run()`.")


def get_scheduled(run: Run, config: ParamSchedulerConfig) -> set[tuple[Any, str]]:
    """Return the scheduled pairs (optimizer, hyperparameter); an optimizer is represented by its ID or name."""
    return {(_identify_optimizer(run, part), part.parameter) for part in _get_configs(run, config)}


def _get_configs(run: Run, config: ParamSchedulerConfig) -> list[SchedulerConfig]:
    """Return the configured schedulers, or else those of a custom loop."""
    return config.schedulers or [SchedulerConfig(scheduler=part) for part in run.schedulers.values()]


def _identify_optimizer(run: Run, config: SchedulerConfig) -> Any:
    name = "optimizer" if config.optimizer is None else config.optimizer
    named = run.optimizers.get(name, run.get(name))
    optimizer = named if config.type else getattr(config.scheduler, "optimizer", config.scheduler)
    # A service may be registered later, at before_run.
    return name if optimizer is None else id(optimizer)


def _find_optimizer(run: Run, config: SchedulerConfig) -> Any:
    """Return the optimizer for a scheduler to build; None for an existing scheduler, and for one that is unknown yet.

    Raises:
        ConfigError: If the run has several optimizers and the configuration names none of them.
    """
    if config.type is None:
        return None
    if config.optimizer is not None:
        return run.optimizers.get(config.optimizer, run.get(config.optimizer))
    if len(run.optimizers) > 1:
        names = ", ".join(run.optimizers)
        raise ConfigError(f"schedulers: the run has several optimizers, got {names}. Set `optimizer` to one of them.")
    return run.get("optimizer")


def _get_optimizer(run: Run, config: SchedulerConfig) -> Any:
    """Return the optimizer for a scheduler to build; None for an existing scheduler.

    Raises:
        ServiceError: If no hook has provided the optimizer.
    """
    optimizer = _find_optimizer(run, config)
    return optimizer if optimizer is not None or config.type is None else run.require(config.optimizer or "optimizer")
