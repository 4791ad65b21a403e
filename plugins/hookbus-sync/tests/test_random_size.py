"""Image sizes of batches with and without workers, in the Trainer and in custom loops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.checkpoint.state import build_checkpoint, write_checkpoint
from hookbus.errors import ConfigError, LoopError
from hookbus_sync import SyncRandomSizeHook
from hookbus_sync.random_size import Resize

WORKERS = {
    "main process": {},
    "2 workers": {"num_workers": 2},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
}


class Images(Dataset[Any]):
    """Six images with one channel, in the current size."""

    def __init__(self) -> None:
        self.size = (1, 1)

    def update_dynamic_scale(self, size: tuple[int, int]) -> None:
        self.size = size

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1, *self.size)


class SizeRecorder(Hook):
    """Record the size of each batch and the size that the hook reports."""

    def __init__(self, hook: SyncRandomSizeHook, path: Path | None = None, at: int = 0) -> None:
        super().__init__()
        self.hook, self.path, self.at = hook, path, at
        self.actual: list[tuple[int, int]] = []
        self.expected: list[tuple[int, int]] = []

    def before_train_iter(self, batch: torch.Tensor) -> None:
        self.actual.append((batch.shape[-2], batch.shape[-1]))
        self.expected.append(self.hook.size)

    def after_train_iter(self, run: Run) -> None:
        if self.path is not None and run.iters_done == self.at:
            write_checkpoint(self.path, build_checkpoint(run), 1)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.weight.sum() * batch.mean()


def run_trainer(hooks: list[Any], loader: Any, **options: Any) -> None:
    model = Scale()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(
        model, optimizer, train_loader=loader, work_dir=None, hooks=hooks, default_hooks=False, device="cpu", **options
    ).fit()


def run_custom_loop(hooks: list[Any], loader: Any, **options: Any) -> None:
    bus = HookBus(hooks)
    with bus.run(model=Scale(), train_loader=loader, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_epoch")


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    # Durability after a power failure is not tested here, and fsync is slow on some file systems.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def train(loop: Any, *, workers: str = "main process", dataset: Any = None, **options: Any) -> SizeRecorder:
    hook = SyncRandomSizeHook(ratio_range=(1, 9), interval=2)
    recorder = SizeRecorder(hook, options.pop("path", None), options.pop("at", 0))
    loader = DataLoader(dataset or Images(), batch_size=2, **WORKERS[workers])
    loop([hook, recorder], loader, **{"epochs": 4, "seed": 5, **options})
    return recorder


@pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
class TestSizes:
    @pytest.mark.parametrize("workers", WORKERS)
    def test_size_of_every_batch_is_the_size_of_the_hook(self, loop: Any, workers: str) -> None:
        recorder = train(loop, workers=workers)

        assert len(recorder.actual) == 12
        assert recorder.actual == recorder.expected
        changes = [i + 1 for i in range(12) if i == 0 or recorder.actual[i] != recorder.actual[i - 1]]
        assert len(changes) > 3
        assert all(number % 2 for number in changes)
        assert {side for size in recorder.actual for side in size} <= {32 * k for k in range(1, 10)}

    def test_sizes_depend_on_the_seed(self, loop: Any) -> None:
        first = train(loop).actual

        assert train(loop).actual == first
        assert train(loop, seed=6).actual != first

    @pytest.mark.parametrize("workers", ["main process", "2 persistent workers"])
    @pytest.mark.parametrize("at", [3, 4])
    def test_sizes_are_the_same_after_a_resume(self, loop: Any, workers: str, at: int, tmp_path: Path) -> None:
        path = tmp_path / "saved.pth"
        uninterrupted = train(loop, path=path, at=at).actual

        assert train(loop, workers=workers, resume=path).actual == uninterrupted[at:]

    def test_size_is_set_on_a_dataset_inside_a_wrapper(self, loop: Any) -> None:
        recorder = train(loop, dataset=Subset(Images(), [0, 1]))

        assert recorder.actual == recorder.expected

    def test_dataset_without_a_method_for_the_size_is_an_error(self, loop: Any) -> None:
        with pytest.raises(ConfigError, match=r"list does not support .* update_dynamic_scale\(size\)"):
            train(loop, dataset=Subset([torch.zeros(1)], [0]))


def test_custom_loop_without_run_batches_is_an_error() -> None:
    bus = HookBus([SyncRandomSizeHook()])
    with pytest.raises(LoopError, match=r"Iterate over run\.batches\(loader\)"), bus.run():
        bus.emit("before_train_iter")


def test_size_is_set_on_a_second_dataset_of_the_same_iteration() -> None:
    resize, datasets = Resize(0), [Images(), Images()]
    for dataset in datasets:
        resize(dataset, 0, 0)

    assert datasets[0].size == datasets[1].size == Resize(0).size_for_iteration(0)


@pytest.mark.parametrize("loop", [run_trainer, run_custom_loop])
def test_two_hooks_are_an_error(loop: Any) -> None:
    hooks = [SyncRandomSizeHook(name="b", ratio_range=(2, 3)), SyncRandomSizeHook(name="a", ratio_range=(4, 5))]
    with pytest.raises(ConfigError, match="hook 'b' also changes the image size, and the result depends on"):
        loop(hooks, DataLoader(Images()), epochs=1)


counts = st.integers(1, 40)


@given(st.integers(0, 2**63 - 1), counts, counts, counts, st.integers(0, 10**9))
def test_size_is_a_multiple_of_32_in_the_range_for_a_whole_interval(
    seed: int, first: int, second: int, interval: int, period: int
) -> None:
    least, greatest = sorted((first, second))
    sizes = Resize(seed, (least, greatest), (640, 640), interval)
    distinct = {sizes.size_for_iteration(period * interval + i) for i in (0, interval // 2, interval - 1)}

    ((height, width),) = distinct
    assert height == width
    assert height % 32 == 0
    assert least <= height // 32 <= greatest


def test_all_sizes_of_the_range_occur() -> None:
    sizes = Resize(3, (14, 16), interval=1)

    assert {sizes.size_for_iteration(i) for i in range(100)} == {(448, 448), (480, 480), (512, 512)}


def test_aspect_ratio_is_rounded_to_multiples_of_32() -> None:
    # 15 * 800 / 480 = 25
    assert Resize(0, (15, 15), (480, 800)).size_for_iteration(0) == (480, 800)
    # 3 * 100 / 640 is less than 1
    assert Resize(0, (3, 3), (640, 100)).size_for_iteration(0) == (96, 32)


@pytest.mark.slow
def test_sizes_depend_on_the_seed_and_not_on_the_process() -> None:
    first = [Resize(1, interval=2).size_for_iteration(i) for i in range(20)]
    script = (
        "from hookbus_sync.random_size import Resize\n"
        "print([Resize(1, interval=2).size_for_iteration(i) for i in range(20)])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == repr(first)
    assert first != [Resize(2, interval=2).size_for_iteration(i) for i in range(20)]
