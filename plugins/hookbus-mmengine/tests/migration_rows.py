"""Rows of the migration table of MMEngine: the tests that run them, and the trainings that these tests compare."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook as ForeignHook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookbus import HookBus, Trainer
from hookbus.testing import HostTask
from tests.migration_page import RowTests

from .adapter import TaskModule, build_runner

POINT_ROWS = {
    "`before_run`, `after_run`": "the same",
    "`before_train`, `after_train`": "the same",
    "`before_train_epoch`, `after_train_epoch`": ("the same; `before_epoch` and `after_epoch` include the validation"),
    "`before_train_iter`, `after_train_iter`": "the same",
    "`before_val…`, `after_val…`, `before_test…`, `after_test…`": "the same",
    "`before_save_checkpoint`, `after_load_checkpoint`": "the same",
}
"""Rows of points, for the test of each of them."""

runs_row = RowTests()

runs_row.omit(
    "`DetVisualizationHook`, `SegVisualizationHook`",
    "`det_visualization`, `seg_visualization`",
    "MMDetection and MMSegmentation draw with compiled operators of MMCV, and their images differ",
)


class Net(nn.Module):
    """The model of a task without its dropout, so that a training is a function of its batches."""

    def __init__(self, task: HostTask) -> None:
        super().__init__()
        self.task_model = task.model()
        self.task_model.layers[1].p = 0.0

    def forward(self, inputs: Tensor) -> Any:
        return self.task_model(inputs)


class PlainModule(TaskModule):
    """The model of a task without its dropout, in a Runner."""

    def __init__(self, task: HostTask) -> None:
        super().__init__(task)
        self.model = Net(task)


def build_plain_runner(task: HostTask, directory: Path, **arguments: Any) -> Runner:
    """Return a Runner that trains without random numbers, and saves no checkpoints by default.

    Args:
        task: The task.
        directory: Directory of the files.
        arguments: Arguments of the Runner; `clip_grad` is that of the optimizer wrapper.
    """
    model = PlainModule(task)
    wrapper = OptimWrapper(
        task.optimizer(model), accumulative_counts=task.accumulate, clip_grad=arguments.pop("clip_grad", None)
    )
    defaults = {
        "train_dataloader": DataLoader(task.train_data(), task.batch_size),
        "default_hooks": {"checkpoint": None, "logger": None},
    }
    return build_runner(task, directory, **{**defaults, **arguments}, model=model, optim_wrapper=wrapper)


def build_plain_trainer(task: HostTask, directory: Path | None, *hooks: Any, **arguments: Any) -> Trainer:
    """Return the Trainer of hookbus that trains as the Runner does."""
    model = Net(task)
    defaults = {
        "model": model,
        "optimizer": task.optimizer(model),
        "train_loader": DataLoader(task.train_data(), task.batch_size),
        "val_loader": task.val_loader(),
    }
    return Trainer(
        loss_fn=task.loss,
        epochs=task.epochs,
        accumulate=task.accumulate,
        work_dir=directory,
        default_hooks=False,
        hooks=[*hooks],
        **{**defaults, **arguments},
    )


def attach_and_train(runner: Runner, *hooks: Any, **options: Any) -> HookBus:
    """Train a Runner with hooks of hookbus, and return their bus."""
    bus = HookBus([*hooks])
    bus.attach(runner, **options)
    runner.train()
    return bus


def call_at(bus: HookBus, point: str, function: Callable[[str, Any], None]) -> None:
    """Call a function at a point, with the name of the point and the run."""
    bus.on(point, name=f"at_{point}")(lambda run: function(point, run))


def get_weights(model: nn.Module) -> Tensor:
    """Return all parameters in one tensor."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class CallRecorder(ForeignHook):  # type: ignore[misc]
    """Hook of MMEngine that calls a function at each of its methods, with the name of the method and the Runner."""

    priority = "LOW"

    def __init__(self, record: Callable[[str, Any], None], *methods: str) -> None:
        for method in methods:
            setattr(self, method, lambda runner, _method=method, **arguments: record(_method, runner))


def load_detection_hook(module: str, name: str) -> Any:
    """Return a hook of MMDetection. Its package imports compiled operators, which the module itself does not need."""
    package = importlib.util.find_spec("mmdet")
    if package is None or not package.submodule_search_locations:
        pytest.skip("MMDetection is not installed")
    path = Path(package.submodule_search_locations[0], "engine", "hooks", f"{module}.py")
    spec = importlib.util.spec_from_file_location(f"migration_{module}", path)
    loaded = importlib.util.module_from_spec(spec)
    from mmdet.registry import HOOKS

    HOOKS._module_dict.pop(name, None)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)
