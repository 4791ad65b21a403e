"""The learning rate of the YOLOX recipe."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hookbus import Hook, Run
from hookbus.errors import ConfigError, HookError
from hookbus_schedule.border import epoch_length
from hookbus_schedule.config import YOLOXLrUpdaterConfig
from hookbus_schedule.curve import yolox_lr

__all__ = ["YOLOXLrUpdaterHook"]


class YOLOXLrUpdaterHook(Hook):
    """Sets the learning rate of each parameter group before each iteration.

    The rate follows from the place in the training and from the group's first rate, which the optimizer keeps as
    `initial_lr`, so a resumed run needs no memory of it.
    """

    Config = YOLOXLrUpdaterConfig
    makes_requests = False
    config: YOLOXLrUpdaterConfig

    def check(self, run: Run) -> None:
        """See that there is a rate to set, and that nobody else does.

        Raises:
            HookError: the run has no optimizer.
            ConfigError: the run has a scheduler.
        """
        if run.optimizer is None:
            raise HookError("it sets the learning rate of an optimizer: give optimizer= to the run.")
        if run.scheduler is not None:
            other = type(run.scheduler).__name__
            raise ConfigError([f"it sets the learning rate, and so does the run's {other}: leave one of them out."])

    def before_run(self, run: Run) -> None:
        """Note the first rates, before a checkpoint brings its own."""
        if run.mode == "train" and run.optimizer is not None:
            for group in run.optimizer.param_groups:
                _first_rate(group)

    def before_train_iter(self, run: Run) -> None:
        """Set it.

        Raises:
            ConfigError: the end of the run or the length of an epoch is not known, or the parts do not fit into it.
        """
        place = self._by_epoch(run) if self.config.by_epoch else self._by_iteration(run)
        assert run.optimizer is not None
        for group in run.optimizer.param_groups:
            base, floor = _first_rate(group), self.config.min_lr
            rate = yolox_lr(**place, base=base, floor=base * self.config.min_lr_ratio if floor is None else floor)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _by_epoch(self, run: Run) -> dict[str, int]:
        total = run.max_epochs
        if total is None:
            raise ConfigError([f"hook {self.name!r}: by_epoch needs a limit in epochs: give epochs= to the run."])
        lengths = {"warmup": self.config.warmup_epochs, "last": self.config.num_last_epochs}
        return self._fitting({"number": run.epoch + 1, "total": total, **lengths, "offset": 1})

    def _by_iteration(self, run: Run) -> dict[str, int]:
        config, number, total = self.config, run.iter + 1, run.max_iters
        if total is None:
            if run.max_epochs is None:
                raise ConfigError([f"hook {self.name!r} needs the end of the run: give epochs= or iterations=."])
            length = epoch_length(run)
            number, total = run.epoch * length + run.clock.epoch_iter + 1, run.max_epochs * length
        warmup = _in_iterations(run, config.warmup_epochs, config.warmup_iters)
        last = _in_iterations(run, config.num_last_epochs, config.num_last_iters)
        return self._fitting({"number": number, "total": total, "warmup": warmup, "last": last})

    def _fitting(self, place: dict[str, int]) -> dict[str, int]:
        if place["warmup"] + place["last"] > place["total"]:
            unit = "epochs" if self.config.by_epoch else "iterations"
            raise ConfigError(
                [
                    f"hook {self.name!r}: a warm-up of {place['warmup']} and a last part of {place['last']} {unit} do "
                    f"not fit into a training of {place['total']}: shorten them."
                ]
            )
        return place


def _in_iterations(run: Run, epochs: int, iterations: int | None) -> int:
    if iterations is not None:
        return iterations
    return epochs * epoch_length(run) if epochs else 0


def _first_rate(group: dict[str, Any]) -> float:
    """The rate that a group came with; one that is added in the middle of the training brings it then."""
    if "initial_lr" not in group:
        group["initial_lr"] = float(group["lr"])
    return group["initial_lr"]  # type: ignore[no-any-return]
