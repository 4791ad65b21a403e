"""Small models, data and trainers shared by the tests, and a hook that writes checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau
from torch.utils.data import Dataset

from hookbus._run.requests import Request
from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import write_checkpoint
from hookbus.hook import Hook
from hookbus.trainer.trainer import Trainer

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda optimizer: CosineAnnealingLR(optimizer, 20),
    "epoch": lambda optimizer: ExponentialLR(optimizer, 0.9),
    "metric": lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5),
}


class Saver(Hook):
    """Hook that requests and writes a checkpoint at a chosen point.

    Args:
        point: before_epoch, after_train_iter, after_epoch or after_train.
        iteration: Number of completed iterations at which to save. Default: at every event of the point.
    """

    def __init__(self, point: str = "after_train_iter", iteration: int | None = None) -> None:
        super().__init__()
        self.point, self.iteration = point, iteration
        self.files: list[Path] = []

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def before_epoch(self, run: Run) -> None:
        self._request_at(run, "before_epoch")

    def after_train_iter(self, run: Run) -> None:
        self._request_at(run, "after_train_iter")

    def after_epoch(self, run: Run) -> None:
        self._request_at(run, "after_epoch")

    def after_train(self, run: Run) -> None:
        self._request_at(run, "after_train")

    def _request_at(self, run: Run, point: str) -> None:
        if point == self.point and self.iteration in (None, run.iters_done):
            run.request_save()

    def plan(self, run: Run, requests: list[Request]) -> Path:
        return Path(run.require("checkpoints_dir")) / f"iter_{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        path = self.plan(run, [])
        write_checkpoint(path, checkpoint, generation=run.iters_done)
        self.files.append(path)
        return False


def net(width: int = 8) -> nn.Sequential:
    """Return a small model with dropout, which uses random numbers in training."""
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 2))


def pairs(batches: int = 3, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return reproducible batches for `net`."""
    inputs = torch.randn(batches, size, 4, generator=torch.Generator().manual_seed(1))
    return [(batch, (batch.sum(1) > 0).long()) for batch in inputs]


class Augmented(Dataset[tuple[torch.Tensor, int]]):
    """Dataset for `net` with random augmentation from the generators of torch, Python and NumPy."""

    def __init__(self, count: int = 20) -> None:
        self.inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.randn(4) * 0.1 + random.random() * 0.1 + float(np.random.rand()) * 0.1
        return self.inputs[index] + noise, int(self.inputs[index].sum() > 0)


def trainer(*hooks: object, model: nn.Module | None = None, lr: float = 0.1, **options: Any) -> Trainer:
    """Return a trainer on the CPU with exactly these hooks. Defaults: `net`, `pairs`, no work directory."""
    torch.manual_seed(0)
    model = net() if model is None else model
    defaults: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        "loss_fn": nn.functional.cross_entropy,
        "train_loader": pairs(),
        "work_dir": None,
        "hooks": hooks,
        "default_hooks": False,
        "device": "cpu",
    }
    return Trainer(model, **{**defaults, **options})


def run_custom_loop(bus: HookBus, run: Run, loader: Any, model: nn.Module, optimizer: Any) -> Iterator[int]:
    """Run a custom training loop. Yields the index of each epoch before its end is emitted."""
    for epoch in run.epochs():
        bus.emit("before_train_epoch")
        for i, (inputs, targets) in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=(inputs, targets))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            bus.emit("after_train_iter", batch_idx=i, batch=(inputs, targets), outputs={"loss": loss})
        yield epoch
        bus.emit("after_train_epoch")


def idle_run(model: nn.Module | None = None, hooks: tuple[object, ...] = (), **options: Any) -> Run:
    """Return an inactive run of a custom loop."""
    bus = HookBus(hooks)
    bus.attach_run(Run(bus, model=model, **options))
    return bus.current
