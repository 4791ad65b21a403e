"""Base class of hooks that log the means of training metrics every N iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hookbus._events.markers import hookimpl
from hookbus._events.schedules import every
from hookbus._utils.schema import boolean, record
from hookbus.errors import ConfigError
from hookbus.hook import Hook, HookConfig, Priority
from hookbus.metrics.results import Metrics
from hookbus.writers.optimizer_values import find_equal_names, get_optimizer_values

if TYPE_CHECKING:
    from hookbus._run.run import Run


SCHEDULE_SETTINGS = ("interval", "frequency", "when")
"""Settings of the schedule in iterations, without effect with one record per epoch."""


class WriterConfig(HookConfig):
    """Schedule of the training metrics, and the values of optimizers in their records."""

    interval: int = Field(default=50, gt=0, description="Log the means of training metrics every N iterations.")
    logging_interval: Literal["step", "epoch"] = Field(
        default="step",
        description="Log the means of training metrics and the learning rates every `interval` iterations (step), or "
        "at the end of each epoch (epoch).",
    )
    log_momentum: bool = Field(
        default=False,
        description="Log the momentum of each parameter group with the learning rate; the first of `betas` for "
        "optimizers such as Adam.",
    )
    log_weight_decay: bool = Field(
        default=False, description="Log the weight decay of each parameter group with the learning rate."
    )

    @model_validator(mode="after")
    def _check_logging_interval(self) -> Self:
        for setting in self.get_schedule_settings() if self.logging_interval == "epoch" else ():
            if not self.is_default(setting):
                got = getattr(self, setting)
                raise ValueError(f"{setting}: no effect with `logging_interval: epoch`, got {got!r}. Remove it.")
        return self

    @classmethod
    def get_schedule_settings(cls) -> tuple[str, ...]:
        """Return the settings without effect with one record per epoch."""
        return SCHEDULE_SETTINGS


class MetricRecorder(Hook):
    """Request the means of training metrics, and pass them to `write_record`.

    They are requested every `interval` iterations, or with `logging_interval: epoch` at the end of each epoch.

    A record that is due in an iteration without an optimizer step is delivered at the next step. The incomplete
    interval at the end of training is recorded as well, unless a checkpoint stores it for a resumed run.
    """

    Config: ClassVar[type[HookConfig]] = WriterConfig
    priority = Priority.NORMAL
    observer = True
    ranks = "main"
    records_means = True
    state_schema = record({"waiting": boolean})
    _record_pending = False

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        """Write one record.

        Args:
            run: Run whose clock is at the iteration of the record.
            metrics: Means of the metrics over the interval, by full name.
            step: Number of optimizer steps.
        """
        raise NotImplementedError(f"{type(self).__name__}: `write_record` is not implemented.")

    @property
    def logs_by_epoch(self) -> bool:
        """Whether there is one record per epoch."""
        return getattr(self.config, "logging_interval", "step") == "epoch"

    @property
    def _logged_values(self) -> list[str]:
        optional = [name for name in ("momentum", "weight_decay") if getattr(self.config, f"log_{name}", False)]
        return ["lr", *optional]

    def get_optimizer_values(self, run: Run) -> dict[str, float]:
        """Return the values of the optimizers for a record of training, by name.

        These are the learning rates, with `log_momentum` and `log_weight_decay` the momentum and the weight decay, and
        the numbers of steps of named optimizers.

        Args:
            run: Active run.
        """
        return {**run.optimizer_values(*self._logged_values), **run.optimizer_steps()}

    def check(self, run: Run) -> None:
        """Check that the values of the optimizers can be logged.

        Raises:
            ConfigError: If parameter groups have equal names, or no group has a value that a setting requests.
        """
        if run.mode == "train":
            errors = [*_find_equal_names(run), *_find_missing_values(run, self._logged_values)]
            if errors:
                raise ConfigError(errors)

    def before_run(self, run: Run, mode: str) -> None:
        """Create the window of the metrics before the first value is logged."""
        if not run.iters_done:
            self._record_pending = False
        if mode == "train":
            run.metrics.window(self.name)
            run.track_optimizer_values(*self._logged_values)

    def before_train(self, run: Run) -> None:
        """Request again a record that was pending when the checkpoint was saved."""
        if self._record_pending:
            self.request_record(run)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Request a record, unless there is one per epoch."""
        if not self.logs_by_epoch:
            self.request_record(run)

    @hookimpl(frequency=False)
    def after_train_epoch(self, run: Run) -> None:
        """Request the record of a complete epoch if there is one per epoch."""
        if self.logs_by_epoch and run.epoch_complete and run.metrics.window(self.name):
            self.request_record(run)

    def after_train(self, run: Run) -> None:
        """Request a record of the incomplete interval, unless a checkpoint stores it for a resumed run."""
        if run.metrics.window(self.name) and not run.resumable:
            self.request_record(run)

    def request_record(self, run: Run) -> None:
        """Request a record of the metrics since the last one.

        Args:
            run: Active run.
        """
        # The record may be delivered several iterations later, at the next optimizer step.
        self._record_pending = True
        run.request_record(run.metrics.window(self.name), self._deliver)

    def state_dict(self) -> dict[str, Any]:
        """Return whether a record is pending."""
        return {"waiting": self._record_pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._record_pending = state["waiting"]

    def _deliver(self, metrics: Metrics, step: int) -> None:
        self._record_pending = False
        self.write_record(self.run, metrics, step)


def _find_equal_names(run: Run) -> list[str]:
    """Return an error for each optimizer of which several parameter groups have the same name."""
    return [
        f"optimizer{f' {name!r}' if name else ''}: names of parameter groups must be unique, because their learning "
        f"rates are logged by name, got several groups named {', '.join(map(repr, equal))}. Set another `name`."
        for name, optimizer in run.optimizers.items()
        if (equal := find_equal_names(optimizer))
    ]


def _find_missing_values(run: Run, values: list[str]) -> list[str]:
    """Return an error for each value that no parameter group has."""
    # The trainer of a bridge may create its optimizers later.
    if run.host is not None and not run.optimizers:
        return []
    optimizers = run.optimizers.values()
    types = ", ".join(type(optimizer).__name__ for optimizer in optimizers) or "no optimizer"
    return [
        f"log_{value}: no parameter group has a {value.replace('_', ' ')}, got {types}. Remove it."
        for value in values
        if value != "lr"
        and all(item is None for optimizer in optimizers for item in get_optimizer_values(optimizer, value))
    ]
