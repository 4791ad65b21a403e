"""The training task of hookbus.testing in Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import torch
from keras.layers import TorchModuleWrapper
from torch import Tensor

from hookbus import HookBus
from hookbus.testing import HostResult, HostTask
from hookbus_keras.capabilities import CAPABILITIES


class TaskModel(keras.Model):  # type: ignore[misc]  # Keras has no types
    """Model of Keras around the module of a task, with its loss."""

    def __init__(self, task: HostTask) -> None:
        super().__init__()
        self.task, self.wrapped = task, TorchModuleWrapper(task.model())
        self.build((None, 6))
        self.built = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return self.wrapped(inputs, training=training)  # type: ignore[no-any-return]

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Tensor:
        return self.task.loss(y_pred, y)


class TaskOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """SGD with the formula of torch, which differs from the one of Keras by rounding.

    Args:
        optimizer: Optimizer of the task.
        accumulate: Number of batches per update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, accumulate: int) -> None:
        [group] = optimizer.param_groups
        super().__init__(lambda: group["lr"], gradient_accumulation_steps=accumulate if accumulate > 1 else None)
        self.momentum, self.buffers = group["momentum"], []

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self.buffers = [self.add_variable_from_reference(variable, name="buffer") for variable in variables]

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: float) -> None:
        buffer = self.buffers[self._get_variable_index(variable)].value
        buffer.mul_(self.momentum).add_(gradient)
        variable.value.add_(buffer, alpha=-learning_rate)


class KerasAdapter:
    """Training of a task by `fit`, with `BackupAndRestore` for the checkpoints of Keras."""

    capabilities = CAPABILITIES

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: str = "host", resume: bool = False
    ) -> HostResult:
        keras.utils.clear_session()
        model = TaskModel(task)
        model.compile(TaskOptimizer(task.optimizer(model.wrapped.module), task.accumulate))
        options = {"resume": "auto"} if resume and checkpoints == "hookbus" else {}
        bridge = bus.attach(model, checkpoints=checkpoints, work_dir=directory / "hookbus", **options)
        backup = keras.callbacks.BackupAndRestore(str(directory / "host"), delete_checkpoint=False)
        if not resume:
            torch.manual_seed(task.seed)
        model.fit(
            task.train_loader(),
            epochs=task.epochs,
            validation_data=task.val_loader() if task.validate else None,
            shuffle=False,  # the order is that of the loader
            callbacks=[backup] if checkpoints == "host" else [],
            verbose=0,
        )
        return HostResult(model.wrapped.module, bridge)
