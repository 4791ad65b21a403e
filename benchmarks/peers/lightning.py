"""Lightning. Light: `barebones=True`, its setting for measuring overhead; then the default configuration."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.call import _call_callback_hooks
from torch import Tensor

from benchmarks.peers.common import Batch, Blocks, adam, compare, compute_loss, model

OFF: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Listener(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


class ScheduledListener(Callback):
    """Counts its own calls, as the built-in callbacks do."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % 100 == 0:
            raise AssertionError("none of them is due")


class Module(LightningModule):
    def __init__(self, logs: bool = False) -> None:
        super().__init__()
        self.model, self.logs = model(), logs

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = compute_loss(self.model, batch)
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam(self.model)


def event(count: int, rarely: bool) -> Callable[[], Any]:
    trainer = Trainer(callbacks=[(ScheduledListener if rarely else Listener)() for _ in range(count)], **OFF)
    trainer.strategy.connect(Module())
    batch = (1, 2)
    return lambda: _call_callback_hooks(trainer, "on_train_batch_end", None, batch, 0)


def barebones(blocks: Blocks) -> None:
    Trainer(accelerator="cpu", barebones=True, max_epochs=1).fit(Module(), blocks)


def all_off(blocks: Blocks) -> None:
    Trainer(max_epochs=1, **OFF).fit(Module(), blocks)


def defaults(blocks: Blocks) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Trainer(accelerator="cpu", max_epochs=1, default_root_dir=directory).fit(Module(logs=True), blocks)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    compare("lightning", event, {"barebones": barebones, "everything off": all_off, "defaults": defaults})
