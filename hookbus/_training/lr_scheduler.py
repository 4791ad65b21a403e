"""Steps of a learning-rate scheduler, and its length: restored from a checkpoint, and compared with that of a run."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from hookbus._events.points import Unit
from hookbus._utils.arguments import get_by_name, schedules
from hookbus._utils.imports import describe_error
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus._run.clock import Clock
    from hookbus.metrics.results import Metrics

MAX_DRY_RUN_STEPS = 100_000
"""Maximum number of scheduler steps in a dry run."""

UNLIMITED = frozenset(
    {
        lr_scheduler.ConstantLR,
        lr_scheduler.CosineAnnealingLR,
        lr_scheduler.CosineAnnealingWarmRestarts,
        lr_scheduler.CyclicLR,
        lr_scheduler.ExponentialLR,
        lr_scheduler.LinearLR,
        lr_scheduler.MultiStepLR,
        lr_scheduler.PolynomialLR,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.StepLR,
    }
)
"""Schedulers that accept any number of steps if they accept the first one."""

COMBINED = frozenset({lr_scheduler.ChainedScheduler, lr_scheduler.SequentialLR})
"""Schedulers that consist of schedulers and accept the steps that those accept."""

LENGTHS = ("T_0", "T_max", "max_iters", "milestones", "_milestones", "step_size", "total_iters", "total_steps")
"""Attributes of torch's schedulers that determine at which step the learning rate has which value."""

FIRST_CHANGES = {
    lr_scheduler.ConstantLR: "total_iters",
    lr_scheduler.LinearLR: "total_iters",
    lr_scheduler.MultiStepLR: "milestones",
    lr_scheduler.SequentialLR: "_milestones",
    lr_scheduler.StepLR: "step_size",
}
"""Attributes of schedulers that determine after which step the learning rate first changes, or a warm-up ends."""

ONE_CYCLE = ("total_steps", "_schedule_phases")
"""Attributes of a OneCycleLR that determine its length."""


def load_scheduler(scheduler: Any, state: Mapping[str, Any]) -> list[str]:
    """Restore the state of a scheduler, nested ones included.

    A OneCycleLR that was built for more steps than that of the checkpoint keeps its length, because the restored one
    would raise an exception after its last step. All other settings are those of the checkpoint.

    Args:
        scheduler: Scheduler to restore.
        state: Return value of its `state_dict()`.

    Returns:
        A message for each length that differs between the scheduler and the checkpoint.
    """
    built = [_get_lengths(part) for part in iter_schedulers(scheduler)]
    scheduler.load_state_dict(state)
    pairs = zip(iter_schedulers(scheduler), built, strict=False)
    return [message for part, lengths in pairs for message in _reconcile(part, lengths)]


def get_first_changes(scheduler: Any) -> dict[str, int]:
    """Return the first step that a scheduler schedules differently, by setting; {} if every step differs.

    Args:
        scheduler: Scheduler. Numbers that equal the default of its class are omitted.
    """
    changes = {}
    for part in iter_schedulers(scheduler) if type(scheduler) is lr_scheduler.ChainedScheduler else [scheduler]:
        if (name := FIRST_CHANGES.get(type(part))) is not None:
            value, setting = getattr(part, name), name.lstrip("_")
            number = value if isinstance(value, int) else min(value, default=0)
            # A linear schedule changes at every step: it ends at its last step, and the others change after it.
            is_linear = type(part) is lr_scheduler.LinearLR
            if value != inspect.signature(type(part)).parameters[setting].default:
                changes[f"{type(part).__name__}.{setting}"] = number + (not is_linear)
    return changes


def check_scheduler_steps(scheduler: Any, steps: int) -> None:
    """Raise if a scheduler cannot execute a number of further steps. The scheduler is not modified.

    Functions of the user, such as those of a LambdaLR, are called as often as during the training.

    Args:
        scheduler: Scheduler; one that cannot be copied is not checked.
        steps: Number of steps, of which at most `MAX_DRY_RUN_STEPS` are executed.

    Raises:
        ConfigError: If a step raises an exception.
    """
    if scheduler is None:
        return
    if type(scheduler) is lr_scheduler.OneCycleLR:
        # Its limit is known, so the run may have any length.
        done, limit = scheduler.last_epoch, scheduler.total_steps
        if done + steps > limit:
            raise ConfigError(
                f"step {limit + 1} of the scheduler raised ValueError: Tried to step {limit + 1} times: it was "
                f"built for {limit} steps, and the run needs {done + steps}. Build it for {done + steps} steps."
            )
        return
    if all(type(part) in UNLIMITED | COMBINED for part in iter_schedulers(scheduler)):
        steps = min(steps, 1)
    dry_run(scheduler, min(steps, MAX_DRY_RUN_STEPS))


def dry_run(scheduler: Any, steps: int, *arguments: Any) -> None:
    """Execute steps of a copy of a scheduler. One that cannot be copied is not checked.

    Raises:
        ConfigError: If a step raises an exception.
    """
    trial = copy_scheduler(scheduler)
    if trial is None:
        return
    done = max(getattr(part, "last_epoch", 0) for part in iter_schedulers(trial))
    # torch warns that the scheduler is stepped before the optimizer, which is intended here.
    with warnings.catch_warnings(action="ignore"):
        for number in range(done + 1, done + steps + 1):
            try:
                trial.step(*arguments)
            except Exception as error:
                raise ConfigError(f"step {number} of the scheduler raised {describe_error(error)}.") from error


def copy_scheduler(scheduler: Any) -> Any:
    """Return a copy of a scheduler whose optimizer has dummy parameters, or None if it cannot be copied."""
    optimizer = getattr(scheduler, "optimizer", None)
    groups = getattr(optimizer, "param_groups", [])
    # `deepcopy` replaces objects found in its memo, so neither the parameters nor their state are copied.
    memo: dict[int, Any] = {id(weight): nn.Parameter(torch.zeros(1)) for group in groups for weight in group["params"]}
    if optimizer is not None:
        memo[id(getattr(optimizer, "state", None))] = {}
    try:
        return copy.deepcopy(scheduler, memo)
    except Exception:  # e.g. a lambda over an object that cannot be copied; the check is optional
        return None


def iter_schedulers(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler and those it consists of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from iter_schedulers(part)


def _get_lengths(scheduler: Any) -> dict[str, Any]:
    return {name: value for name in {*LENGTHS, *ONE_CYCLE} if (value := getattr(scheduler, name, None)) is not None}


def _reconcile(scheduler: Any, built: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between the lengths of a restored scheduler and those before; keep a longer OneCycleLR."""
    name = type(scheduler).__name__
    restored = _get_lengths(scheduler)
    keeps = isinstance(scheduler, lr_scheduler.OneCycleLR) and built["total_steps"] > restored["total_steps"]
    if keeps:
        vars(scheduler).update({key: built[key] for key in ONE_CYCLE})
    for key in LENGTHS:
        before, after = built.get(key), restored.get(key)
        if before != after:
            yield (
                f"{name} was built with {key.lstrip('_')}={_describe(before)}, and the checkpoint contains "
                f"{_describe(after)}. The {'scheduler' if keeps else 'checkpoint'} determines the learning rate."
            )


def _describe(value: Any) -> str:
    return str(sorted(value) if isinstance(value, Mapping) else value)


class LRSchedulerStepper:
    """Step a learning-rate scheduler at its interval.

    Args:
        scheduler: A scheduler of torch.optim.lr_scheduler, or an object with a compatible `step`; a mapping of names
            to schedulers; or None.
        interval: "epoch" or "step" (optimizer steps). Ignored with `monitor`.
        monitor: Metric passed to `step` after each validation. Default: "val/loss" for a ReduceLROnPlateau, None for
            any other scheduler.

    Raises:
        ConfigError: If the interval is unknown, or `monitor` is set and the scheduler takes no metric.
    """

    def __init__(self, scheduler: Any, interval: str, monitor: str | None) -> None:
        if interval not in ("epoch", "step"):
            raise ConfigError(f"scheduler_interval: expected 'epoch' or 'step', got {interval!r}.")
        self.scheduler, self.interval = scheduler, interval
        parts = list(get_by_name(scheduler).values())
        if monitor is not None and parts and all(map(_is_stepped_with_epoch, parts)):
            names = ", ".join(type(part).__name__ for part in parts)
            raise ConfigError(f"scheduler_monitor: {names} takes no metric, got {monitor!r}. Remove `monitor`.")
        needs_metric = any(isinstance(part, lr_scheduler.ReduceLROnPlateau) for part in parts)
        self.monitor = monitor or ("val/loss" if needs_metric else None)
        # Of several schedulers, only those that take a metric are stepped after a validation.
        self._monitored = [part for part in parts if self.monitor is not None and not _is_stepped_with_epoch(part)]
        self._scheduled = [part for part in parts if not any(part is other for other in self._monitored)]

    def check_length(self, steps: int) -> None:
        """Check that the scheduler accepts a number of further steps.

        Raises:
            ConfigError: If a step would raise an exception.
        """
        try:
            for part in self._scheduled:  # a scheduler that takes a metric has no length
                check_scheduler_steps(part, steps)
        except ConfigError as error:
            raise ConfigError(f"scheduler: {error}") from error

    def dry_run(self, steps: int) -> None:
        """Execute steps of a copy of the scheduler.

        Raises:
            ConfigError: If a step raises an exception.
        """
        for part in self._scheduled:
            dry_run(part, steps)
        for part in self._monitored:
            dry_run(part, steps, 0.0)

    def get_milestones(self) -> dict[str, tuple[int, Unit]]:
        """Return the epochs or optimizer steps in which the schedulers first change the learning rate."""
        unit: Unit = "epoch" if self.interval == "epoch" else "step"
        return {
            setting: (number, unit) for part in self._scheduled for setting, number in get_first_changes(part).items()
        }

    def warn_if_never_stepped(self, clock: Clock, logger: logging.Logger) -> None:
        """Warn if the run ends before an epoch-wise scheduler is stepped."""
        length, limit = clock.epoch_length, clock.max_iters
        is_per_epoch = self._scheduled and self.interval == "epoch"
        if is_per_epoch and length is not None and limit is not None and limit < length:
            logger.warning(
                "scheduler (%s): stepped after each epoch of %s iterations, but the run ends after %s, so the learning "
                "rate does not change. Set scheduler_interval='step' (`scheduler.interval: step` in a run file).",
                ", ".join(type(part).__name__ for part in self._scheduled),
                length,
                limit,
            )

    def after_optimizer_step(self, optimizer: Any) -> None:
        """Step the schedulers of an optimizer with interval "step". Called after each optimizer step."""
        if self.interval == "step":
            for part in self._scheduled:
                if len(self._scheduled) == 1 or schedules(part, optimizer):
                    part.step()

    def after_epoch(self, is_complete: bool) -> None:
        """Step the schedulers with interval "epoch". Called after each epoch and its validation."""
        # A truncated epoch is not counted: the schedule would otherwise depend on when a run is interrupted.
        if self.interval == "epoch" and is_complete:
            for part in self._scheduled:
                part.step()

    def after_validation(self, results: Metrics) -> None:
        """Step the schedulers with the monitored metric. Called after each validation."""
        for part in self._monitored:
            part.step(results[self.monitor])  # type: ignore[index]


def _is_stepped_with_epoch(scheduler: Any) -> bool:
    """Whether the first argument of `step` is an epoch and not a metric."""
    return (
        isinstance(scheduler, lr_scheduler.LRScheduler)
        and "epoch" in list(inspect.signature(scheduler.step).parameters)[:1]
    )
