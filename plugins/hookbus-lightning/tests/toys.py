"""Small modules and trainers for the tests of the bridge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from hookbus import HookBus
from hookbus.bridge import Bridge

Batch = Any


class Mean(pl.LightningModule):
    """One weight w, whose loss in a batch of x is w * mean(x): each step subtracts lr * mean(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def compute_loss(self, batch: Batch) -> torch.Tensor:
        return (self.weight * batch[0].mean()).sum()

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        return self.compute_loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validated(Mean):
    """The same, which is validated and tested."""

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val_loss", self.compute_loss(batch))

    def test_step(self, batch: Batch, batch_idx: int) -> Any:
        self.log("test_loss", self.compute_loss(batch))


def make_loader(*values: float) -> DataLoader[Any]:
    """Return a loader of batches with one sample each."""
    return DataLoader(TensorDataset(torch.tensor(values)))


def make_trainer(directory: Path, **options: Any) -> Any:
    """Return a silent trainer."""
    defaults = {
        "max_epochs": 1,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
    }
    return pl.Trainer(accelerator="cpu", default_root_dir=directory, **{**defaults, **options})


def attach(bus: HookBus, directory: Path, *, options: Any = None, **arguments: Any) -> Bridge:
    """Attach a bus to a trainer of `make_trainer(directory, **arguments)`, with the options of the bridge."""
    return bus.attach(make_trainer(directory, **arguments), **(options or {}))
