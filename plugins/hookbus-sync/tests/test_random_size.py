"""What is delivered, with and without workers, in the Trainer and in a loop of one's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError, LoopError
from hookbus.state import collect, write_checkpoint
from hookbus_sync import SyncRandomSizeHook
from hookbus_sync.random_size import Resize
from hookbus_sync.sizes import Sizes

WORKERS = {
    "here": {},
    "2 workers": {"num_workers": 2},
    "2 that stay": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
}


class Images(Dataset[Any]):
    """Six pictures of one channel, in the size that was told last."""

    def __init__(self) -> None:
        self.size = (1, 1)

    def update_dynamic_scale(self, size: tuple[int, int]) -> None:
        self.size = size

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1, *self.size)


class Watch(Hook):
    """Notes the size of each batch, and the one that was announced."""

    def __init__(self, hook: SyncRandomSizeHook, path: Path | None = None, at: int = 0) -> None:
        super().__init__()
        self.hook, self.path, self.at = hook, path, at
        self.delivered: list[tuple[int, int]] = []
        self.announced: list[tuple[int, int]] = []

    def before_train_iter(self, batch: torch.Tensor) -> None:
        self.delivered.append((batch.shape[-2], batch.shape[-1]))
        self.announced.append(self.hook.size)

    def after_train_iter(self, run: Run) -> None:
        if self.path is not None and run.iters_done == self.at:
            write_checkpoint(self.path, collect(run), 1)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.weight.sum() * batch.mean()


def by_trainer(hooks: list[Any], loader: Any, **options: Any) -> None:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(
        model, optimizer, train_loader=loader, work_dir=None, hooks=hooks, default_hooks=False, device="cpu", **options
    ).fit()


def by_hand(hooks: list[Any], loader: Any, **options: Any) -> None:
    bus = HookBus(hooks)
    with bus.run(model=Scale(), train_loader=loader, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_epoch")


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def train(loop: Any, *, workers: str = "here", dataset: Any = None, **options: Any) -> Watch:
    hook = SyncRandomSizeHook(ratio_range=(1, 9), interval=2)
    watch = Watch(hook, options.pop("path", None), options.pop("at", 0))
    loader = DataLoader(dataset or Images(), batch_size=2, **WORKERS[workers])
    loop([hook, watch], loader, **{"epochs": 4, "seed": 5, **options})
    return watch


@pytest.mark.parametrize("loop", [by_trainer, by_hand])
class TestSizes:
    @pytest.mark.parametrize("workers", WORKERS)
    def test_are_those_announced_in_every_batch(self, loop: Any, workers: str) -> None:
        watch = train(loop, workers=workers)

        assert len(watch.delivered) == 12
        assert watch.delivered == watch.announced
        changes = [i + 1 for i in range(12) if i == 0 or watch.delivered[i] != watch.delivered[i - 1]]
        assert len(changes) > 3
        assert all(number % 2 for number in changes)
        assert {side for size in watch.delivered for side in size} <= {32 * k for k in range(1, 10)}

    def test_are_the_same_for_the_same_seed(self, loop: Any) -> None:
        first = train(loop).delivered

        assert train(loop).delivered == first
        assert train(loop, seed=6).delivered != first

    @pytest.mark.parametrize("workers", ["here", "2 that stay"])
    @pytest.mark.parametrize("at", [3, 4])
    def test_are_the_same_after_a_resume(self, loop: Any, workers: str, at: int, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        whole = train(loop, path=path, at=at).delivered

        assert train(loop, workers=workers, resume=path).delivered == whole[at:]

    def test_are_told_to_a_data_set_inside_another(self, loop: Any) -> None:
        watch = train(loop, dataset=Subset(Images(), [0, 1]))

        assert watch.delivered == watch.announced

    def test_that_nobody_can_be_told_are_an_error_at_the_start(self, loop: Any) -> None:
        with pytest.raises(ConfigError, match=r"list cannot have another size: .* update_dynamic_scale\(size\)"):
            train(loop, dataset=Subset([torch.zeros(1)], [0]))


def test_a_loop_that_reads_its_data_by_itself_is_told() -> None:
    bus = HookBus([SyncRandomSizeHook()])
    with pytest.raises(LoopError, match=r"take the batches from run\.batches\(loader\)"), bus.run():
        bus.emit("before_train_iter")


def test_other_data_of_the_same_iterations_is_told_as_well() -> None:
    resize, data = Resize(Sizes(0, (14, 26), (640, 640), 10)), [Images(), Images()]
    for each in data:
        resize(each, 0, 0)

    assert data[0].size == data[1].size == Sizes(0, (14, 26), (640, 640), 10).at(0)
