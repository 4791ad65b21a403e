"""Training of a task in an engine of Ignite, for the conformance tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Loss
from torch import nn
from torch.optim import Optimizer

from hookbus import HookBus
from hookbus.testing import HostResult, HostTask
from hookbus_ignite import CAPABILITIES
from hookbus_ignite.bridge import IgniteBridge


class IgniteAdapter:
    """Engine with an evaluator, and a checkpoint after each epoch."""

    capabilities = CAPABILITIES

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: Any = "host", resume: bool = False
    ) -> HostResult:
        """Train a task; see `hookbus.testing.HostAdapter`."""
        model = task.model()
        optimizer = task.optimizer(model)
        trainer = create_trainer(task, model, optimizer)
        options: dict[str, Any] = {"checkpoints": checkpoints, "work_dir": directory / "hookbus"}
        if checkpoints == "hookbus":
            options["resume"] = "auto" if resume else "never"
        if task.validate:
            add_validation(trainer, task, model, options)
        to_save: dict[str, Any] = {"trainer": trainer, "model": model, "optimizer": optimizer}
        if checkpoints == "host":
            saver = DiskSaver(directory / "host", require_empty=False)
            options["save"] = Checkpoint(to_save, saver, n_saved=None)
            trainer.add_event_handler(Events.EPOCH_COMPLETED, options["save"])
        bridge = bus.attach(trainer, model=model, optimizer=optimizer, **options)
        assert isinstance(bridge, IgniteBridge)
        to_save["hookbus"] = bridge
        if resume and checkpoints == "host":
            load_newest(to_save, directory / "host")
        else:
            torch.manual_seed(task.seed)
        trainer.run(task.train_loader(), max_epochs=task.epochs)
        return HostResult(model, bridge)


def create_trainer(task: HostTask, model: nn.Module, optimizer: Optimizer) -> Engine:
    """Return an engine that trains a task and returns loss and outputs."""

    def update(engine: Engine, batch: Any) -> dict[str, Any]:
        if (engine.state.iteration - 1) % task.accumulate == 0:
            optimizer.zero_grad()
        model.train()
        inputs, targets = batch
        outputs = model(inputs)
        loss = task.loss(outputs, targets)
        (loss / task.accumulate).backward()
        if engine.state.iteration % task.accumulate == 0:
            optimizer.step()
        return {"loss": loss.detach(), "output": outputs.detach()}

    return Engine(update)


def add_validation(trainer: Engine, task: HostTask, model: nn.Module, options: dict[str, Any]) -> None:
    """Evaluate after each epoch, and pass the evaluator to the bridge."""
    evaluator, loader = create_supervised_evaluator(model, {"loss": Loss(task.loss)}), task.val_loader()

    def validate(engine: Engine) -> None:
        evaluator.run(loader)

    trainer.add_event_handler(Events.EPOCH_COMPLETED, validate)
    options |= {"evaluators": {"val": evaluator}, "validate": validate}


def load_newest(to_load: dict[str, Any], directory: Path) -> None:
    """Load the newest checkpoint of a directory."""
    newest = max(directory.glob("*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    Checkpoint.load_objects(to_load, torch.load(newest, weights_only=True))
