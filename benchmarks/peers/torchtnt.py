"""torchtnt. Light: a TrainUnit with a custom step and no callbacks; its documentation recommends AutoUnit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchtnt.framework._callback_handler import CallbackHandler
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callback import Callback
from torchtnt.framework.state import State
from torchtnt.framework.train import train
from torchtnt.framework.unit import TrainUnit

from benchmarks.peers.common import Batch, Blocks, adam, compare, compute_loss, model


class Listener(Callback):
    def on_train_step_end(self, state: State, unit: Any) -> None:
        pass


class ScheduledListener(Callback):
    """Counts its own calls, as the built-in callbacks do."""

    def on_train_step_end(self, state: State, unit: Any) -> None:
        if unit.train_progress.num_steps_completed % 100 == 0:
            raise AssertionError("none of them is due")


def event(count: int, rarely: bool) -> Callable[[], Any]:
    handler = CallbackHandler([(ScheduledListener if rarely else Listener)() for _ in range(count)])
    unit = Unit()
    unit.train_progress.increment_step()
    state = State.__new__(State)
    state._timer = None  # no timer, so that the time of the callbacks is not recorded
    return lambda: handler.on_train_step_end(state, unit)


class Unit(TrainUnit[Batch]):
    def __init__(self) -> None:
        super().__init__()
        self.module = model()
        self.optimizer = adam(self.module)

    def train_step(self, state: State, data: Batch) -> None:
        self.optimizer.zero_grad()
        compute_loss(self.module, data).backward()
        self.optimizer.step()


class Auto(AutoUnit[Batch]):
    def compute_loss(self, state: State, data: Batch) -> tuple[Tensor, Any]:
        return compute_loss(self.module, data), None

    def configure_optimizers_and_lr_scheduler(self, module: nn.Module) -> tuple[torch.optim.Optimizer, None]:
        return adam(module), None


def with_unit(blocks: Blocks) -> None:
    train(Unit(), blocks, max_epochs=1)


def with_auto_unit(blocks: Blocks) -> None:
    train(Auto(module=model(), device=torch.device("cpu")), blocks, max_epochs=1)


if __name__ == "__main__":
    compare("torchtnt", event, {"TrainUnit": with_unit, "AutoUnit": with_auto_unit})
