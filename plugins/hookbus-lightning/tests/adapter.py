"""Trainings of the task of the conformance check in the Trainer of Lightning and in a loop with Fabric."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from hookbus import HookBus, Run
from hookbus.testing import HostResult, HostTask
from hookbus_lightning import FABRIC, TRAINER


def make_module(pl: Any, task: HostTask) -> Any:
    """Return the module of a task.

    Args:
        pl: `lightning.pytorch` or `pytorch_lightning`.
        task: What to train.
    """

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            outputs = self.model(inputs)
            return {"loss": task.loss(outputs, targets), "output": outputs}

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            return task.loss(self.model(inputs), targets)

        def configure_optimizers(self) -> Any:
            return task.optimizer(self.model)

    return Module()


class TrainerAdapter:
    """Trainings in the Trainer.

    Args:
        package: "lightning.pytorch" or "pytorch_lightning".
    """

    capabilities = TRAINER

    def __init__(self, package: str = "lightning.pytorch") -> None:
        self._pl = import_module(package)

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: Any = "host", resume: bool = False
    ) -> HostResult:
        """Train a task, see `HostAdapter`."""
        trainer = self._make_trainer(task, directory / "host", checkpoints)
        bridge = bus.attach(
            trainer,
            checkpoints=checkpoints,
            work_dir=directory / "hookbus",
            resume="auto" if resume and checkpoints == "hookbus" else "never",
        )
        module = make_module(self._pl, task)
        if not resume:
            torch.manual_seed(task.seed)
        trainer.fit(
            module,
            task.train_loader(),
            task.val_loader() if task.validate else None,
            ckpt_path=_find_newest(directory / "host") if resume and checkpoints == "host" else None,
        )
        return HostResult(module.model, bridge)

    def _make_trainer(self, task: HostTask, directory: Path, checkpoints: str) -> Any:
        saving = self._pl.callbacks.ModelCheckpoint(directory, save_top_k=-1, save_on_train_epoch_end=True)
        return self._pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=task.epochs,
            accumulate_grad_batches=task.accumulate,
            callbacks=[saving] if checkpoints == "host" else [],
            enable_checkpointing=checkpoints == "host",
            default_root_dir=directory,
            num_sanity_val_steps=0,  # which the Trainer of hookbus does not make
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


class FabricAdapter:
    """Trainings in a loop with Fabric.

    Args:
        package: "lightning.fabric" or "lightning_fabric".
    """

    capabilities = FABRIC

    def __init__(self, package: str = "lightning.fabric") -> None:
        self._fabric = import_module(package)

    def train(
        self, bus: HookBus, task: HostTask, directory: Path, *, checkpoints: Any = "host", resume: bool = False
    ) -> HostResult:
        """Train a task, see `HostAdapter`."""
        fabric = self._fabric.Fabric(accelerator="cpu", devices=1)
        resumed = "auto" if resume and checkpoints == "hookbus" else "never"
        bridge = bus.attach(fabric, checkpoints=checkpoints, work_dir=directory / "hookbus", resume=resumed)
        original = task.model()
        model, optimizer = fabric.setup(original, task.optimizer(original))
        train_loader, val_loader = fabric.setup_dataloaders(task.train_loader(), task.val_loader())
        state = {"model": model, "optimizer": optimizer, "hookbus": bridge}
        if not resume:
            torch.manual_seed(task.seed)
        if resume and checkpoints == "host":
            fabric.load(_find_newest(directory / "host"), state)

        def validate(run: Run) -> dict[str, float]:
            losses = []
            for i, (inputs, targets) in enumerate(val_loader):
                bus.emit("before_val_iter", batch_idx=i, batch=(inputs, targets))
                losses.append(task.loss(model(inputs), targets))
                bus.emit("after_val_iter", batch_idx=i, batch=(inputs, targets), outputs={"loss": losses[-1]})
            return {"loss": float(torch.stack(losses).mean())}

        options = {"train_loader": train_loader, "validate": validate if task.validate else None}
        with bridge.train(model=model, optimizer=optimizer, epochs=task.epochs, **options) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                _train_epoch(fabric, run, task, model, optimizer, train_loader)
                bus.emit("after_train_epoch")
                if task.validate and not run.should_stop:
                    run.validate()
                if checkpoints == "host" and run.epoch_complete:
                    fabric.save(directory / "host" / f"{run.epochs_done}.ckpt", state)
        return HostResult(original, bridge)


def _train_epoch(fabric: Any, run: Run, task: HostTask, model: Any, optimizer: Any, loader: Any) -> None:
    emit = run.bus.emit
    for i, batch in enumerate(loader):
        emit("before_train_iter", batch_idx=i, batch=batch)
        inputs, targets = run.resolve_batch(batch)
        if i % task.accumulate == 0:
            optimizer.zero_grad()
        outputs = model(inputs)
        loss = task.loss(outputs, targets)
        fabric.backward(loss / task.accumulate)
        if (i + 1) % task.accumulate == 0:
            optimizer.step()
        emit(
            "after_train_iter",
            batch_idx=i,
            batch=batch,
            outputs={"loss": loss.detach(), "output": outputs.detach()},
        )
        if run.should_stop_epoch:
            break


def _find_newest(directory: Path) -> str:
    return str(max(directory.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns))
