"""Learning rate schedule of YOLOX."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.errors import ConfigError, HookError
from hookbus_schedule.config import YOLOXLrUpdaterConfig
from hookbus_schedule.milestones import get_epoch_length, get_start_points, get_total_iterations, to_iterations
from hookbus_schedule.param_scheduler import ParamSchedulerHook, get_scheduled


class YOLOXLrUpdaterHook(Hook):
    """Set the learning rate of each parameter group before each iteration.

    The learning rate is a function of the position in the training and of `initial_lr`, which the optimizer state
    contains, so a resumed run requires no state of the hook.
    """

    Config = YOLOXLrUpdaterConfig
    makes_requests = False
    schedules_learning_rate = True
    config: YOLOXLrUpdaterConfig

    @property
    def needs(self) -> Needs:
        """An optimizer, and the start of iterations; of epochs as well with `by_epoch`."""
        return Needs(points=get_start_points("epoch" if self.config.by_epoch else "iter"), optimizer=True)

    def check(self, run: Run) -> None:
        """Check that the run has an optimizer and a limit, and that nothing else sets its learning rate.

        Raises:
            HookError: If the run has no optimizer.
            ConfigError: If the run has no limit, a scheduler, or another hook that sets the learning rate.
        """
        if run.optimizer is None:
            raise HookError("requires the optimizer of the run, got None. Pass `optimizer` to the run.")
        # The core reports a schedule of another trainer, with the remedy.
        if run.scheduler is not None and not run.external_lr_schedule:
            other = ", ".join(type(scheduler).__name__ for scheduler in run.schedulers.values())
            raise ConfigError(
                f"sets the learning rate, as does the scheduler {other} of the run. Remove one of the two."
            )
        if run.mode == "train":
            if self.config.by_epoch and run.max_epochs is None:
                raise ConfigError("by_epoch requires a limit in epochs, got none. Set `epochs`.")
            if run.max_epochs is None and run.max_iters is None:
                raise ConfigError("requires a limit of the run, got none. Set `epochs` or `iterations`.")
            # A custom loop may determine the length of an epoch later, by the loader that it reads.
            if run.trainer is not None or run.epoch_length is not None:
                self._check_lengths(run)
        self.check_unique(run, "sets the learning rate, and the result depends on their order")
        for name, hook in run.bus.hooks.items():
            if isinstance(hook, ParamSchedulerHook) and (id(run.optimizer), "lr") in get_scheduled(run, hook.config):
                raise ConfigError(f"sets the learning rate, as does hook {name!r}. Remove one of the two.")

    def before_run(self, run: Run) -> None:
        """Store the initial learning rates in the parameter groups."""
        # Before a checkpoint is loaded, so that its values replace these.
        if run.mode == "train":
            for group in _iter_groups(run):
                _get_initial_lr(group)

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run) -> None:
        """Set the learning rates of the iteration.

        Raises:
            ConfigError: If the limit of the run or a required epoch length is unknown, or warm-up and final phase
                exceed the training.
        """
        position = self._get_position(run)
        for group in _iter_groups(run):
            base, floor = _get_initial_lr(group), self.config.min_lr
            rate = yolox_lr(**position, base=base, floor=base * self.config.min_lr_ratio if floor is None else floor)
            # In place: compiled and capturable optimizers reference the tensor.
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _get_position(self, run: Run) -> dict[str, int]:
        """Return the arguments of the curve that are equal for all parameter groups."""
        if self.config.by_epoch:
            return {"number": run.epoch + 1, **self._check_lengths(run), "offset": 1}
        # In a run that is limited in epochs not `run.iter`: truncated epochs have fewer iterations.
        begin = run.iter if run.max_iters is not None else run.epoch * get_epoch_length(run) + run.epoch_iter
        return {"number": begin + 1, **self._check_lengths(run)}

    def _check_lengths(self, run: Run) -> dict[str, int]:
        """Return the lengths of the training, the warm-up and the final phase, in epochs or iterations."""
        lengths = self._get_lengths(run)
        if lengths["warmup"] + lengths["last"] > lengths["total"]:
            unit = "epochs" if self.config.by_epoch else "iterations"
            raise ConfigError(
                f"warm-up and final phase must not exceed the training of {lengths['total']} {unit}, got "
                f"{lengths['warmup']} and {lengths['last']}. Reduce one of them."
            )
        return lengths

    def _get_lengths(self, run: Run) -> dict[str, int]:
        config = self.config
        if config.by_epoch:
            assert run.max_epochs is not None  # a precondition
            return {"total": run.max_epochs, "warmup": config.warmup_epochs, "last": config.num_last_epochs}
        return {
            "total": get_total_iterations(run),
            "warmup": to_iterations(run, config.warmup_epochs, config.warmup_iters),
            "last": to_iterations(run, config.num_last_epochs, config.num_last_iters),
        }


def _iter_groups(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the parameter groups of all optimizers."""
    for optimizer in run.optimizers.values():
        yield from optimizer.param_groups


def _get_initial_lr(group: dict[str, Any]) -> float:
    """Return the initial learning rate of a group, and store it in the group if it is new."""
    if "initial_lr" not in group:
        group["initial_lr"] = float(group["lr"])
    return group["initial_lr"]  # type: ignore[no-any-return]


def yolox_lr(
    number: float, *, base: float, floor: float, total: float, warmup: float = 0, last: float = 0, offset: float = 0
) -> float:
    """Return the learning rate: quadratic warm-up, cosine decay from `base` to `floor`, then `floor`.

    All lengths have the same unit as `number`.

    Args:
        number: Number of the iteration or epoch, from 1.
        base: Learning rate at the end of the warm-up.
        floor: Final learning rate.
        total: Length of the training.
        warmup: Length of the warm-up; 0 for no warm-up.
        last: Length of the final phase with a constant learning rate.
        offset: Offset that the cosine subtracts from `number`; 1 evaluates the start of an epoch instead of its end.
    """
    if number <= warmup:
        return base * (number / warmup) ** 2
    done, length = number - offset - warmup, total - last - warmup
    # Also avoids a division by zero: warm-up and final phase may cover the whole training.
    if done >= length:
        return floor
    return floor + (base - floor) / 2 * (1 + math.cos(math.pi * done / length))
