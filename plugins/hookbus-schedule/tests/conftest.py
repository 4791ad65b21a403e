"""Small trainings with the Trainer and with a custom loop, for hooks that change data or learning rates."""

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
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint


class DetectionDataset(Dataset[Any]):
    """Six samples [number of skipped transforms, identifier of the pipeline]."""

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
    """A model with a flag for the L1 loss, which records the epochs that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.head = nn.Linear(2, 1)
        self.use_l1 = False
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(batch)).mean()  # type: ignore[no-any-return]


class IterationRecorder(Hook):
    """Record epoch, skipped transforms, pipeline, L1 flag and learning rate of each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []
        self.skipped: list[int] = []
        self.pipelines: list[int] = []
        self.l1: list[bool] = []
        self.rates: list[float] = []

    def after_forward(self, run: Run, batch: torch.Tensor) -> None:
        assert len(set(map(tuple, batch.tolist()))) == 1  # all samples of a batch are equal
        self.epochs.append(run.epoch + 1)
        self.skipped.append(int(batch[0, 0]))
        self.pipelines.append(int(batch[0, 1]))
        self.l1.append(getattr(run.model, "use_l1", False))
        if run.optimizer is not None:
            self.rates.append(float(run.optimizer.param_groups[0]["lr"]))


WORKERS = {
    "main process": {},
    "2 workers": {"num_workers": 2},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
}


def run_trainer(hooks: list[Any], loader: Any, model: Net, path: Path | None, **options: Any) -> IterationRecorder:
    recorder = IterationRecorder()
    Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.01)),
        train_loader=loader,
        **{"hooks": [*hooks, recorder], "default_hooks": False, "work_dir": None, "device": "cpu", **options},
        resume=path or "never",
    ).fit()
    return recorder


def run_custom_loop(hooks: list[Any], loader: Any, model: Net, path: Path | None, **options: Any) -> IterationRecorder:
    recorder, optimizer = IterationRecorder(), torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.01))
    bus = HookBus([*hooks, recorder])
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
    return recorder


class SaveAt(Hook):
    """Write a checkpoint after an iteration, and stop the run."""

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
        write_checkpoint(self.path, build_checkpoint(run), 1)
        return False


class Kit:
    """Classes and functions of the tests. `kit.train(*hooks, epochs=..., workers=...)` trains 3 batches per epoch."""

    DetectionDataset, Net, SaveAt = DetectionDataset, Net, SaveAt
    strong, weak = staticmethod(strong), staticmethod(weak)

    def __init__(self, loop: Callable[..., IterationRecorder]) -> None:
        self.loop = loop

    def train(
        self, *hooks: Any, resume: Path | None = None, model: Net | None = None, **options: Any
    ) -> IterationRecorder:
        torch.manual_seed(0)
        workers = WORKERS[options.pop("workers", "main process")]
        dataset = options.pop("dataset", None) or DetectionDataset()
        loader = options.pop("loader", None)
        loader = DataLoader(dataset, batch_size=2, **workers) if loader is None else loader
        return self.loop(list(hooks), loader, model or Net(), resume, **options)


@pytest.fixture(params=["trainer", "custom loop"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Return the kit for the Trainer and for a custom loop."""
    return Kit(run_trainer if request.param == "trainer" else run_custom_loop)


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # Durability after a power failure is not tested here, and fsync is slow on some file systems.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
