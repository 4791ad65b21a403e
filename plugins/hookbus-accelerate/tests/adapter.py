"""Training of a task in a loop with Accelerate, for the conformance tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from hookbus import Hook, HookBus, Run
from hookbus.testing import HostResult, HostTask
from hookbus_accelerate import CAPABILITIES
from hookbus_accelerate.bridge import AccelerateBridge


class AccelerateAdapter:
    """Loop with `accelerator.prepare`, `accumulate`, `save_state` and `load_state`."""

    capabilities = CAPABILITIES

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: Any = "host", resume: bool = False
    ) -> HostResult:
        """Train a task; see `hookbus.testing.HostAdapter`."""
        accelerator = create_accelerator(directory / "host", task.accumulate)
        options = {"work_dir": directory / "hookbus"}
        if checkpoints == "hookbus":
            options["resume"] = "auto" if resume else "never"
        bridge = bus.attach(accelerator, checkpoints=checkpoints, **options)
        assert isinstance(bridge, AccelerateBridge)
        model = task.model()
        optimizer = task.optimizer(model)
        prepared = accelerator.prepare(model, optimizer, task.train_loader(), task.val_loader())
        if resume and checkpoints == "host":
            load_newest(accelerator)
        else:
            torch.manual_seed(task.seed)
        train_loop(bridge, bus, task, prepared, saves=checkpoints == "host")
        return HostResult(model, bridge)


def create_accelerator(directory: Path, accumulate: int = 1, **options: Any) -> Accelerator:
    """Return an accelerator on the CPU that names its checkpoints in a directory."""
    project = ProjectConfiguration(project_dir=str(directory), automatic_checkpoint_naming=True)
    return Accelerator(cpu=True, gradient_accumulation_steps=accumulate, project_config=project, **options)


def load_newest(accelerator: Accelerator) -> None:
    """Load the newest checkpoint, and continue the numbers of the checkpoints."""
    accelerator.load_state()
    accelerator.project_configuration.iteration = len(list(Path(accelerator.project_dir, "checkpoints").iterdir()))


def train_loop(bridge: AccelerateBridge, bus: HookBus, task: HostTask, prepared: Any, *, saves: bool) -> None:
    """Train the epochs of a task, with a validation and a checkpoint after each."""
    model, optimizer, train_loader, val_loader = prepared
    accelerator = bridge.host
    validate = create_validation(model, task, val_loader) if task.validate else None
    with bridge.train(
        model=model, optimizer=optimizer, epochs=task.epochs, validate=validate, train_loader=train_loader
    ) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, (inputs, targets) in read(run, train_loader):
                bus.emit("before_train_iter", batch_idx=i, batch=(inputs, targets))
                inputs, targets = run.resolve_batch((inputs, targets))
                with accelerator.accumulate(model):
                    outputs = model(inputs)
                    loss = task.loss(outputs, targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                results = {"loss": loss.detach(), "output": outputs.detach()}
                bus.emit("after_train_iter", batch_idx=i, batch=(inputs, targets), outputs=results)
                if run.should_stop_epoch:
                    break
            bus.emit("after_train_epoch")
            if validate is not None and not run.should_stop:
                run.validate()
            if saves and run.epoch_complete:
                accelerator.save_state()


def read(run: Run, loader: Any) -> Iterator[tuple[int, Any]]:
    """Yield the batches of an epoch, through the run if a hook modifies the data."""
    modify_data = any(isinstance(hook, Hook) and hook.needs.data for hook in run.bus.hooks.values())
    yield from run.batches(loader) if modify_data else enumerate(loader)


def create_validation(model: Any, task: HostTask, loader: Any) -> Callable[[Run], dict[str, float]]:
    """Return a validation function that emits the events of its batches."""

    def validate(run: Run) -> dict[str, float]:
        losses = []
        for i, (inputs, targets) in enumerate(loader):
            run.bus.emit("before_val_iter", batch_idx=i, batch=(inputs, targets))
            outputs = model(inputs)
            losses.append(task.loss(outputs, targets))
            results = {"loss": losses[-1], "output": outputs}
            run.bus.emit("after_val_iter", batch_idx=i, batch=(inputs, targets), outputs=results)
        return {"loss": float(torch.stack(losses).mean())}

    return validate
