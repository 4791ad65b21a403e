"""View of a run with the attributes of a Runner that hooks of MMEngine use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper

from hookbus import Run
from hookbus.errors import HookError

IN_EPOCH = frozenset({"before_train_epoch", "before_train_iter", "after_train_iter", "after_train_epoch"})
IN_ITERATION = frozenset({"before_train_iter", "after_train_iter"})


class RunnerView:
    """View of a run, in which `epoch` and `iter` have the meaning of MMEngine.

    Args:
        run: The run.
        param_schedulers: Parameter schedulers of MMEngine.

    Attributes:
        point: Point of the current event.
        message_hub: Message hub whose training scalars are logged by the run.
        optim_wrapper: Wrapper of the optimizer, to read and set learning rates; None without a single optimizer.
        param_schedulers: Parameter schedulers of MMEngine.
        train_loop: View of the training loop.
    """

    message_hub: LoggedMessageHub
    optim_wrapper: OptimWrapper | None
    param_schedulers: list[Any]
    train_loop: TrainLoopView

    def __init__(self, run: Run, param_schedulers: Sequence[Any]) -> None:
        self.run, self.point = run, ""
        self.param_schedulers = list(param_schedulers)
        self.message_hub = LoggedMessageHub("hookbus", run)
        self.optim_wrapper = None if run.optimizer is None else OptimWrapper(run.optimizer)
        self.train_loop = TrainLoopView(self)

    @property
    def model(self) -> Any:
        """Model."""
        return self.run.model

    @property
    def logger(self) -> Any:
        """Logger of the run."""
        return self.run.logger

    @property
    def epoch(self) -> int:
        """Index of the epoch in its training part, else the number of complete epochs."""
        return self.run.epoch if self.point in IN_EPOCH else self.run.epochs_done

    @property
    def iter(self) -> int:
        """Index of the iteration in progress, else the number of complete iterations."""
        return self.run.iter if self.point in IN_ITERATION else self.run.iters_done

    @property
    def max_epochs(self) -> float:
        """Number of epochs; infinity without a limit."""
        return self.run.max_epochs or math.inf

    @property
    def max_iters(self) -> float:
        """Number of iterations; infinity if it is unknown."""
        return self.run.limit("iter") or math.inf

    @property
    def train_dataloader(self) -> Any:
        """Training loader."""
        return self.run.train_loader

    @property
    def val_dataloader(self) -> Any:
        """Validation loader."""
        return self.run.val_loader

    @property
    def test_dataloader(self) -> Any:
        """Test loader."""
        return self.run.test_loader

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return self.run.seed

    @property
    def work_dir(self) -> str:
        """Work directory of the run."""
        return str(self.run.require("experiment_dir"))

    @property
    def log_dir(self) -> str:
        """Directory for logs."""
        return str(self.run.require("logs_dir"))

    def __getattr__(self, name: str) -> Any:
        """Raise for a part of a Runner that a run does not have."""
        raise HookError(f"{self.point}: the hook uses runner.{name}, which a run of hookbus does not have.")


class TrainLoopView:
    """View of the training loop.

    Args:
        runner: View of the run.
    """

    def __init__(self, runner: RunnerView) -> None:
        self._runner = runner

    @property
    def stop_training(self) -> bool:
        """Whether the training stops. Setting it requests a stop."""
        return self._runner.run.should_stop

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value:
            self._runner.run.request_stop("runner.train_loop.stop_training = True")


class LoggedMessageHub(MessageHub):  # type: ignore[misc]
    """Message hub whose scalars of the training are logged by a run.

    Args:
        name: Name of the hub.
        run: The run.
    """

    def __init__(self, name: str, run: Run) -> None:
        super().__init__(name)
        self._run = run

    def update_scalar(self, key: str, value: Any, count: int = 1, resumed: bool = True) -> None:
        """Record a scalar, and log it if its name begins with `train/`."""
        super().update_scalar(key, value, count, resumed)
        prefix, _, name = key.rpartition("/")
        if prefix == "train":
            self._run.log(**{name: value})
