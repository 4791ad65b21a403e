"""A small training whose hooks change its data or its rates."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.state import collect, write_checkpoint


class Mosaic(Dataset[Any]):
    """Six samples (what was left out or which pipeline, index), as detection data sets give them."""

    def __init__(self) -> None:
        self.skipped: tuple[str, ...] = ()
        self.pipeline: Callable[[Any], Any] = strong

    def update_skip_type_keys(self, keys: list[str]) -> None:
        self.skipped = tuple(keys)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(len(self.skipped)), self.pipeline(index)])


def strong(sample: int) -> float:
    return 1.0


def weak(sample: int) -> float:
    return 2.0


class Net(nn.Module):
    """Has an L1 loss that can be switched on, and wants to know the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.head = nn.Linear(2, 1)
        self.use_l1 = False
        self.told: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(batch)).mean()  # type: ignore[no-any-return]


class Watch(Hook):
    """Notes what was delivered, and how the model stood, iteration by iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.left_out: list[int] = []
        self.pipelines: list[int] = []
        self.l1: list[bool] = []
        self.rates: list[float] = []

    def after_forward(self, run: Run, batch: torch.Tensor) -> None:
        assert len(set(map(tuple, batch.tolist()))) == 1  # a batch is of one kind
        self.epochs.append(run.epoch + 1)
        self.left_out.append(int(batch[0, 0]))
        self.pipelines.append(int(batch[0, 1]))
        self.l1.append(getattr(run.model, "use_l1", False))
        if run.optimizer is not None:
            self.rates.append(float(run.optimizer.param_groups[0]["lr"]))


WORKERS = {
    "here": {},
    "2 workers": {"num_workers": 2},
    "2 that stay": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
}


def by_trainer(hooks: list[Any], loader: Any, model: Net, path: Path | None, **options: Any) -> Watch:
    watch = Watch()
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.01)),
        train_loader=loader,
        **{"hooks": [*hooks, watch], "default_hooks": False, "work_dir": None, "device": "cpu", **options},
        resume=path or "never",
    ).fit()
    return watch


def by_hand(hooks: list[Any], loader: Any, model: Net, path: Path | None, **options: Any) -> Watch:
    """A loop of one's own."""
    watch, optimizer = Watch(), torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.01))
    bus = HookBus([*hooks, watch])
    with bus.run(model=model, optimizer=optimizer, train_loader=loader, resume=path or "never", **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                loss = model(batch)
                bus.emit("after_forward", batch_idx=i, batch=batch, loss=loss)
                loss.backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, loss=loss)
            bus.emit("after_train_epoch")
    return watch


class SaveAt(Hook):
    """Writes a checkpoint after an iteration, and ends the run."""

    def __init__(self, path: Path, iteration: int) -> None:
        super().__init__()
        self.path, self.iteration = path, iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_save(saver=self)
            run.request_stop("saved")

    def plan(self, run: Run, requests: Any) -> Path:
        return self.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        write_checkpoint(self.path, collect(run), 1)
        return False


class Kit:
    """What the tests need: `kit.train(hooks, epochs=..., workers=...)` makes three batches of two in an epoch."""

    Mosaic, Net, SaveAt, strong, weak = Mosaic, Net, SaveAt, staticmethod(strong), staticmethod(weak)

    def __init__(self, loop: Callable[..., Watch]) -> None:
        self.loop = loop

    def train(self, *hooks: Any, resume: Path | None = None, model: Net | None = None, **options: Any) -> Watch:
        torch.manual_seed(0)
        workers, dataset = WORKERS[options.pop("workers", "here")], options.pop("dataset", None) or Mosaic()
        loader = options.pop("loader", None)
        loader = DataLoader(dataset, batch_size=2, **workers) if loader is None else loader
        return self.loop(list(hooks), loader, model or Net(), resume, **options)


@pytest.fixture(params=["trainer", "own loop"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """The kit, with the Trainer and with a loop of one's own."""
    return Kit(by_trainer if request.param == "trainer" else by_hand)


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
