"""Training of a task in the Runner of MMEngine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor

from hookbus import Hook, HookBus
from hookbus.testing import HostResult, HostTask
from hookbus_mmengine.capabilities import CAPABILITIES


class TaskModule(BaseModel):
    """The model of a task, with the interface that a Runner requires."""

    def __init__(self, task: HostTask) -> None:
        super().__init__()
        self.task, self.model = task, task.model()

    def forward(self, inputs: Tensor, targets: Tensor, mode: str = "tensor") -> Any:
        outputs = self.model(inputs)
        if mode == "loss":
            return {"loss": self.task.loss(outputs, targets)}
        return [(outputs, targets)]


class MeanLoss(BaseMetric):
    """Mean loss of the validation."""

    default_prefix = None

    def __init__(self, task: HostTask) -> None:
        super().__init__(prefix="")
        self.task = task

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [(float(self.task.loss(*sample)), len(sample[1])) for sample in data_samples]

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        return {"loss": sum(loss * size for loss, size in results) / sum(size for _, size in results)}


class MMEngineAdapter:
    """Training of a task in the Runner of MMEngine."""

    capabilities = CAPABILITIES

    def train(
        self,
        bus: HookBus,
        task: HostTask,
        directory: Path,
        *,
        checkpoints: str = "host",
        resume: bool = False,
    ) -> HostResult:
        """Train a task, see `hookbus.testing.HostAdapter`."""
        runner = build_runner(task, directory, resume=resume and checkpoints == "host")
        options = {"resume": "auto"} if resume and checkpoints == "hookbus" else {}
        bridge = bus.attach(runner, checkpoints=checkpoints, work_dir=directory / "hookbus", **options)
        if not resume:
            torch.manual_seed(task.seed)
        runner.train()
        return HostResult(runner.model.model, bridge)


def build_runner(task: HostTask, directory: Path, *, resume: bool = False, **arguments: Any) -> Runner:
    """Return a Runner that trains a task, saves after each epoch, and validates after it."""
    model = arguments.pop("model", None) or TaskModule(task)
    validation: dict[str, Any] = {
        "val_dataloader": task.val_loader(),
        "val_cfg": {},
        "val_evaluator": [MeanLoss(task)],
    }
    defaults: dict[str, Any] = {
        "train_dataloader": task.train_loader(),
        "train_cfg": {"by_epoch": True, "max_epochs": task.epochs},
        "default_hooks": {"checkpoint": {"type": "CheckpointHook", "interval": 1}},
        "optim_wrapper": OptimWrapper(task.optimizer(model), accumulative_counts=task.accumulate),
    }
    return Runner(
        model,
        work_dir=str(directory / "host"),
        **{**(validation if task.validate else {}), **defaults, **arguments},
        resume=resume,
        log_level="ERROR",
        experiment_name=uuid4().hex,  # MMEngine warns of two runners with the same name
        default_scope="mmengine",
    )


class RequestAt(Hook):
    """Hook that makes a request in an iteration, given as number from 1."""

    makes_requests = True

    def __init__(self, iteration: int, request: str) -> None:
        super().__init__()
        self.iteration, self.request = iteration, request

    def after_train_iter(self, run: Any) -> None:
        if run.iters_done == self.iteration:
            getattr(run, f"request_{self.request}")()
