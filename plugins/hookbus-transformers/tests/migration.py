"""Table of the tests that run the rows of docs/coming-from.md, and trainings for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from hookbus import HookBus, Run, Trainer
from hookbus.testing import HostTask
from tests.migration_page import RowTests

from .adapter import TaskTrainer
from .toys import make_trainer

covers = RowTests()


def train_native(
    directory: Path,
    task: HostTask | None = None,
    callbacks: Iterable[TrainerCallback] = (),
    *,
    hooks: Iterable[object] = (),
    resume: bool = False,
    **options: Any,
) -> TaskTrainer:
    """Return the Trainer after a training with callbacks; with hooks, a bus is attached as well."""
    task = task or HostTask()
    trainer = make_trainer(directory, task, **options)
    for callback in callbacks:
        trainer.add_callback(callback)
    if hooks := [*hooks]:
        bus = hooks[0] if isinstance(hooks[0], HookBus) else HookBus(hooks)
        bus.attach(trainer, work_dir=directory / "hookbus")
    torch.manual_seed(task.seed)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


class Batches:
    """Training batches in the order of the Trainer, of which the Trainer of hookbus makes no seeded copy."""

    def __init__(self, task: HostTask) -> None:
        self._loader = task.train_loader()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        return iter([*self._loader])


def make_reference(directory: Path, task: HostTask, hooks: Iterable[object] = (), **options: Any) -> Trainer:
    """Return a Trainer of hookbus for a task."""
    model = task.model()
    return Trainer(
        model,
        optimizer=task.optimizer(model),
        loss_fn=task.loss,
        train_loader=Batches(task),
        hooks=hooks,
        default_hooks=False,
        work_dir=directory / "reference",
        device="cpu",
        **{"epochs": task.epochs, "val_loader": task.val_loader(), **options},
    )


def train_reference(directory: Path, task: HostTask | None = None, hooks: Iterable[object] = (), **options: Any) -> Run:
    """Return the run of a training in the Trainer of hookbus."""
    task = task or HostTask()
    trainer = make_reference(directory, task, hooks, **options)
    torch.manual_seed(task.seed)
    return trainer.fit()


def get_weights(model: nn.Module | None) -> Tensor:
    """Return all weights of a model in one tensor."""
    assert model is not None
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def get_logs(trainer: TaskTrainer, name: str) -> list[tuple[int, float]]:
    """Return the steps and values of a result in the log of a Trainer."""
    return [(entry["step"], entry[name]) for entry in trainer.state.log_history if name in entry]


def get_saved(directory: Path) -> list[str]:
    """Return the names of the checkpoints of a Trainer."""
    return sorted(path.name for path in (directory / "host").glob("checkpoint-*"))
