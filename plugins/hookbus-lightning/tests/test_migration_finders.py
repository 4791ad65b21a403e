"""Rows of the migration page for searches before the training: the callback of Lightning and the hook agree."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

import lightning
import lightning.pytorch as pl
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from packaging.version import Version

from hookbus import Trainer
from hookbus_finders import BatchSizeFinderHook, LRFinderHook

from .migration import covers
from .test_migration_training import make_data
from .toys import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")

RESTORES = Version(lightning.__version__) >= Version("2.6")
"""Whether Lightning restores the weights after its range test. Lightning 2.5.0 does not."""
DATA = TensorDataset(torch.linspace(-1, 1, 96).reshape(48, 2), torch.linspace(0, 1, 48).reshape(48, 1))
CAPACITY = 20
MARGIN: float = getattr(inspect.signature(BatchSizeFinder).parameters.get("margin"), "default", 0.0)
"""Margin that Lightning subtracts in the mode binsearch; Lightning 2.5 has none."""
BETA = 0.98
"""Weight of the earlier losses in the average of Lightning."""


class Sized(pl.LightningModule):
    """Model that exceeds its memory if a batch is larger than the capacity."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        self.batch_size, self.lr = 4, 0.1

    def compute_loss(self, batch: Any) -> Any:
        if len(batch[0]) > CAPACITY:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return (self.layers(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.compute_loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> Any:
        return DataLoader(DATA, batch_size=self.batch_size)


def train(hook: Any, loader: Any) -> Sized:
    """Train in the Trainer of hookbus."""
    module = Sized()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    options: dict[str, Any] = {"default_hooks": False, "device": "cpu", "work_dir": None, "hooks": [hook]}
    trainer = Trainer(module, optimizer, None, loader, step_fn=lambda _, batch: module.compute_loss(batch), **options)
    trainer.fit(epochs=2)
    return module


@covers(
    "`LearningRateFinder`", "`lr_finder` with `apply: true`; its slope is that over the logarithm of the learning rate"
)
def test_learning_rates_and_losses_of_the_range_test(tmp_path: Path) -> None:
    count, low, high = 8, 1e-4, 1e-1
    callback = LearningRateFinder(low, high, count, early_stop_threshold=None, update_attr=False)
    module = Sized()
    make_trainer(tmp_path, max_epochs=2, callbacks=[callback]).fit(module, make_data())
    theirs: Any = callback.optimal_lr
    # Lightning trains once with `min_lr`; its second learning rate is two steps above it.
    first = low * (high / low) ** (1 / count)
    hook = LRFinderHook(min_lr=first, max_lr=high, num_training_steps=count, early_stop_threshold=None, smoothing=0.0)
    other = train(hook, make_data())
    assert hook.result is not None
    assert hook.result.rates[1:] == pytest.approx(theirs.results["lr"][1:count], rel=1e-5)
    averages = [loss * (1 - BETA ** (i + 2)) for i, loss in enumerate(theirs.results["loss"][:count])]
    losses = [(now - BETA * before) / (1 - BETA) for before, now in zip([0.0, *averages], averages, strict=False)]
    assert hook.result.losses == pytest.approx(losses, rel=1e-3)
    # The training that follows is the same, and in hookbus that without a range test.
    alone = Sized()
    make_trainer(tmp_path / "alone", max_epochs=2).fit(alone, make_data())
    expected = nn.utils.parameters_to_vector(alone.parameters())
    assert torch.equal(nn.utils.parameters_to_vector(other.parameters()), expected)
    if RESTORES:
        assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), expected)


@covers("`BatchSizeFinder`", "`batch_size_finder` with `apply: true`; the default margin applies to both modes")
@pytest.mark.parametrize(("mode", "margin", "size"), [("power", 0.0, 16), ("binsearch", MARGIN, 20 - int(20 * MARGIN))])
def test_batch_size_is_the_same(mode: Any, margin: float, size: int, tmp_path: Path) -> None:
    module = Sized()
    callback = BatchSizeFinder(mode, steps_per_trial=1)
    make_trainer(tmp_path, max_epochs=2, callbacks=[callback]).fit(module)
    hook = BatchSizeFinderHook(mode=mode, steps_per_trial=1, margin=margin)
    train(hook, module.train_dataloader())
    assert hook.result is not None
    assert hook.result.size == callback.optimal_batch_size == size
