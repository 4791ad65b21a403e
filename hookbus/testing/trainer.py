"""A small training of the Trainer, with loaders, validations and checkpoints, for the conformance check."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.hook import Hook
from hookbus.testing.training import CheckpointWriter
from hookbus.trainer.trainer import Trainer

SAMPLES, BATCH_SIZE, FEATURES = 12, 4, 3


class EpochSaver(CheckpointWriter):
    """Requests a checkpoint after each epoch, and writes it if no other hook does."""

    def after_epoch(self, run: Run) -> None:
        """Request the checkpoint."""
        run.request_save("conformance check", saver=run.get("checkpoint_saver", self))


class SmallTrainer:
    """Trainer of a tiny model on synthetic data on the CPU, with a hook.

    Args:
        hook: The hook.
        work_dir: Output directory.
        seed: Seed of torch. The run has none, because the Trainer would seed the RNGs of the process with it.

    Attributes:
        bus: Bus of the trainer.
    """

    def __init__(self, hook: Hook, work_dir: Path, seed: int) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Dropout(0.1), nn.Linear(4, 2))
        loader = make_loader()
        self._trainer = Trainer(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            loss_fn=functional.cross_entropy,
            train_loader=loader,
            val_loader=loader,
            metrics=["accuracy"],
            epochs=1,
            work_dir=work_dir,
            device="cpu",
            default_hooks=False,
            hooks=[hook, EpochSaver()],
        )
        self.bus: HookBus = self._trainer.bus

    def run(self, targets: set[str]) -> None:
        """Train and validate, and test or predict if a hook listens there.

        Args:
            targets: Points and actions of the hook.
        """
        self._trainer.fit()
        parts = {part for target in targets for part in target.split("_")}
        if "test" in parts:
            self._trainer.test_loader = make_loader()
            self._trainer.test()
        if "predict" in parts:
            self._trainer.predict(make_loader())


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return a loader of pairs of inputs and class indices."""
    inputs = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), BATCH_SIZE)
