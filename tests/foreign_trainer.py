"""A trainer that knows nothing of hookbus, the bridge that connects it, and its adapter for the conformance check."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hookbus import HookBus
from hookbus._run.host import Checkpoints
from hookbus.bridge import Bridge, Capabilities
from hookbus.testing import HostResult, HostTask


class Callback:
    """Methods that the trainer calls."""

    def on_fit_start(self, trainer: ForeignTrainer) -> None: ...
    def on_epoch_start(self, trainer: ForeignTrainer) -> None: ...
    def on_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None: ...
    def on_loss(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...
    def on_gradients(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...
    def on_batch_end(
        self, trainer: ForeignTrainer, batch: Any, outputs: Tensor | None, loss: Tensor | None
    ) -> None: ...
    def on_train_epoch_end(self, trainer: ForeignTrainer) -> None: ...
    def on_validation_start(self, trainer: ForeignTrainer) -> None: ...
    def on_validation_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None: ...
    def on_validation_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None: ...
    def on_validation_end(self, trainer: ForeignTrainer) -> None: ...
    def on_epoch_end(self, trainer: ForeignTrainer) -> None: ...
    def on_save(self, trainer: ForeignTrainer, checkpoint: dict[str, Any]) -> None: ...
    def on_saved(self, trainer: ForeignTrainer, path: Path) -> None: ...
    def on_load(self, trainer: ForeignTrainer, checkpoint: Mapping[str, Any]) -> None: ...
    def on_fit_end(self, trainer: ForeignTrainer) -> None: ...
    def on_exception(self, trainer: ForeignTrainer, error: BaseException) -> None: ...


class ForeignTrainer:
    """Trainer that calls its callbacks and reads the flags that they set.

    Args:
        model, optimizer, loss_fn: What to train.
        epochs: Number of epochs.
        accumulate: Number of iterations per optimizer step.
        directory: Directory of a checkpoint after each epoch; None for no checkpoints.
        saves: Whether to save after each epoch.

    Attributes:
        should_stop: Set by a callback: end the training after this iteration.
        should_stop_epoch: Set by a callback: end the epoch after this iteration.
        should_skip: Set by a callback: no backward pass in this iteration.
        metrics: Results of the last validation.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *,
        epochs: int,
        accumulate: int = 1,
        directory: Path | None = None,
        saves: bool = True,
    ) -> None:
        self.model, self.optimizer, self.loss_fn = model, optimizer, loss_fn
        self.epochs, self.accumulate, self.directory, self.saves = epochs, accumulate, directory, saves
        self.callbacks: list[Callback] = []
        self.epoch = self.iteration = 0
        self.should_stop = self.should_stop_epoch = self.should_skip = False
        self.metrics: dict[str, float] = {}
        self.val_loader: Any = None

    def call(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, *arguments)

    def fit(self, train_loader: Any, val_loader: Any = None, checkpoint: Path | None = None) -> None:
        self.val_loader = val_loader
        try:
            if checkpoint is not None:
                self.load(checkpoint)
            self.call("on_fit_start")
            while self.epoch < self.epochs and not self.should_stop:
                self.train_epoch(train_loader)
            self.call("on_fit_end")
        except BaseException as error:
            self.call("on_exception", error)
            raise

    def train_epoch(self, loader: Any) -> None:
        self.call("on_epoch_start")
        self.should_stop_epoch = False
        for batch in loader:
            self.train_batch(batch)
            if self.should_stop or self.should_stop_epoch:
                break
        self.call("on_train_epoch_end")
        self.epoch += not self.should_stop
        if self.val_loader is not None and not self.should_stop:
            self.validate()
        self.call("on_epoch_end")
        if self.directory is not None and self.saves:
            self.save()

    def train_batch(self, batch: Any) -> None:
        self.model.train()
        self.should_skip = False
        if self.iteration % self.accumulate == 0:
            self.optimizer.zero_grad()
        self.call("on_batch_start", batch)
        outputs = loss = None
        if not self.should_skip:
            outputs, loss = self.step(*batch)
        self.iteration += 1
        self.call("on_batch_end", batch, outputs, loss)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.model(inputs)
        loss = self.loss_fn(outputs, targets)
        self.call("on_loss", (inputs, targets), outputs, loss)
        if not self.should_skip:
            (loss / self.accumulate).backward()
            self.call("on_gradients", (inputs, targets), outputs, loss)
            if (self.iteration + 1) % self.accumulate == 0:
                self.optimizer.step()
        return outputs, loss.detach()

    @torch.no_grad()
    def validate(self) -> None:
        self.model.eval()
        self.call("on_validation_start")
        total = 0.0
        for inputs, targets in self.val_loader:
            self.call("on_validation_batch_start", (inputs, targets))
            outputs = self.model(inputs)
            loss = self.loss_fn(outputs, targets)
            total += float(loss)
            self.call("on_validation_batch_end", (inputs, targets), outputs, loss)
        self.metrics = {"val_loss": total / len(self.val_loader)}
        self.call("on_validation_end")

    def save(self) -> None:
        assert self.directory is not None
        self.directory.mkdir(parents=True, exist_ok=True)
        content: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        content |= {"epoch": self.epoch, "iteration": self.iteration}
        self.call("on_save", content)
        path = self.directory / f"{self.iteration:04}.pt"
        torch.save(content, path)
        self.call("on_saved", path)

    def load(self, path: Path) -> None:
        content = torch.load(path, weights_only=True)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.epoch, self.iteration = content["epoch"], content["iteration"]
        self.call("on_load", content)


class ForeignBridge(Bridge, Callback):
    """Bridge of `ForeignTrainer`."""

    capabilities: ClassVar[Capabilities]
    host: ForeignTrainer

    def attach(self) -> None:
        self.host.callbacks.append(self)
        self.replace(self.host, "save", self.omit_refused_save())

    def detach(self) -> None:
        super().detach()
        if self in self.host.callbacks:
            self.host.callbacks.remove(self)

    def on_fit_start(self, trainer: ForeignTrainer) -> None:
        run = self.open(model=trainer.model, optimizer=trainer.optimizer, epochs=trainer.epochs)
        # In the mode "hookbus", the run has restored its checkpoint.
        trainer.epoch, trainer.iteration = run.epochs_done, run.iters_done

    def on_epoch_start(self, trainer: ForeignTrainer) -> None:
        self.bus.emit("before_epoch")
        self.bus.emit("before_train_epoch")

    def on_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None:
        self.bus.emit("before_train_iter", batch=batch)
        trainer.should_skip = self.active_run.should_skip_iter

    def on_loss(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        self.bus.emit("after_forward", batch=batch, outputs=outputs, loss=loss)
        trainer.should_skip = self.active_run.should_skip_iter

    def on_gradients(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        self.bus.emit("after_backward", batch=batch, outputs=outputs, loss=loss)

    def on_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor | None, loss: Tensor | None) -> None:
        self.bus.emit("after_train_iter", batch=batch, outputs=outputs, loss=loss)

    def on_train_epoch_end(self, trainer: ForeignTrainer) -> None:
        self.bus.emit("after_train_epoch")

    def on_validation_start(self, trainer: ForeignTrainer) -> None:
        self.active_run.begin_validation()
        self.bus.emit("before_val_epoch")

    def on_validation_batch_start(self, trainer: ForeignTrainer, batch: Any) -> None:
        self.bus.emit("before_val_iter", batch=batch)

    def on_validation_batch_end(self, trainer: ForeignTrainer, batch: Any, outputs: Tensor, loss: Tensor) -> None:
        self.bus.emit("after_val_iter", batch=batch, outputs=outputs)

    def on_validation_end(self, trainer: ForeignTrainer) -> None:
        self.bus.emit("after_val_epoch", metrics=self.select_results(trainer.metrics))
        self.active_run.end_validation()

    def on_epoch_end(self, trainer: ForeignTrainer) -> None:
        self.bus.emit("after_epoch")

    def on_save(self, trainer: ForeignTrainer, checkpoint: dict[str, Any]) -> None:
        if state := self.get_state():
            checkpoint["hookbus"] = state

    def on_saved(self, trainer: ForeignTrainer, path: Path) -> None:
        self.report_save(path)

    def on_load(self, trainer: ForeignTrainer, checkpoint: Mapping[str, Any]) -> None:
        self.set_state(checkpoint.get("hookbus", {}))

    def on_fit_end(self, trainer: ForeignTrainer) -> None:
        self.close()

    def on_exception(self, trainer: ForeignTrainer, error: BaseException) -> None:
        self.close(error)

    def stop(self, reasons: Sequence[str]) -> None:
        self.host.should_stop = True

    def stop_epoch(self) -> None:
        self.host.should_stop_epoch = True

    def save(self, reasons: Sequence[str]) -> None:
        self.host.save()

    def validate(self) -> None:
        self.host.validate()


CAPABILITIES = Capabilities(
    host="foreign trainer",
    bridge=f"{__name__}:ForeignBridge",
    requests={"stop": "iteration", "stop_epoch": "iteration", "save": "now", "validation": "now", "skip": "now"},
    checkpoints=("host", "hookbus"),
)
ForeignBridge.capabilities = CAPABILITIES


class ForeignAdapter:
    """Adapter of `ForeignTrainer`.

    Args:
        bridge: Class of the bridge.
    """

    def __init__(self, bridge: type[ForeignBridge] = ForeignBridge) -> None:
        self.bridge, self.capabilities = bridge, bridge.capabilities

    def train(
        self,
        bus: HookBus,
        task: HostTask,
        directory: Path,
        *,
        checkpoints: Checkpoints = "host",
        resume: bool = False,
    ) -> HostResult:
        model = task.model()
        trainer = ForeignTrainer(
            model,
            task.optimizer(model),
            task.loss,
            epochs=task.epochs,
            accumulate=task.accumulate,
            directory=directory / "host",
            saves=checkpoints == "host",
        )
        options = {"resume": "auto"} if resume and checkpoints == "hookbus" else {}
        bridge = self.bridge(bus, trainer, checkpoints=checkpoints, work_dir=directory / "hookbus", **options)
        bridge.attach()
        newest = max((directory / "host").glob("*.pt")) if resume and checkpoints == "host" else None
        torch.manual_seed(task.seed)
        trainer.fit(task.train_loader(), task.val_loader() if task.validate else None, newest)
        return HostResult(model, bridge)


@contextmanager
def publish(directory: Path, capabilities: str = f"{__name__}:CAPABILITIES") -> Iterator[None]:
    """Context manager in which the bridge is published by the entry points of an installed package."""
    info = directory / "foreign_bridge-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-bridge\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[hookbus.bridges]\ntests.ForeignTrainer = {capabilities}\n")
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
