"""Names, retention and durations: checkpoints of combined settings and of multiple runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Trainer
from hookbus._run.run import Run
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook


def list_periodic(directory: Path) -> list[str]:
    """Return the periodic checkpoints, sorted by number."""
    paths = [path for path in (directory / "checkpoints").glob("*.pth") if path.stem.rpartition("_")[2].isdigit()]
    for path in paths:
        verify(path)
    return [path.name for path in sorted(paths, key=lambda path: int(path.stem.rpartition("_")[2]))]


class IterationTime(Hook):
    """Set the duration of each iteration in seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.now = seconds, 0.0

    def before_run(self, run: Run) -> None:
        run.clock.timer = lambda: self.now

    def after_forward(self) -> None:
        self.now += self.seconds


class TestDuration:
    @pytest.mark.parametrize("every", ["30", "30s", "30 s"])
    def test_checkpoints_are_written_after_each_duration(self, tmp_path: Path, every: str) -> None:
        """12 iterations of 10 s: time elapses during an iteration and is measured at the start of the next one."""
        hooks = [CheckpointHook(interval=None, every=every, save_last=False), IterationTime(10)]
        fake_training(hooks, epochs=4, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["iter_4.pth", "iter_7.pth", "iter_10.pth"]

    def test_duration_adds_to_the_interval(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(interval=2, every="1min", save_last=False), IterationTime(10)]
        fake_training(hooks, epochs=4, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["epoch_2.pth", "epoch_4.pth", "iter_7.pth"]

    def test_resumed_run_continues_the_duration(self, tmp_path: Path) -> None:
        for epochs in (1, 4):
            hooks = [CheckpointHook(interval=None, every="50s", max_keep_ckpts=None), IterationTime(10)]
            fake_training(hooks, epochs=epochs, work_dir=tmp_path, resume="auto")

        assert list_periodic(tmp_path) == ["iter_6.pth", "iter_11.pth"]


class TestKeepEvery:
    def test_checkpoints_with_multiples_of_the_number_are_kept(self, tmp_path: Path) -> None:
        hook = CheckpointHook(max_keep_ckpts=2, keep_every=3, save_last=False)
        fake_training([hook], epochs=8, batches=1, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["epoch_3.pth", "epoch_6.pth", "epoch_7.pth", "epoch_8.pth"]

    def test_keep_every_counts_the_unit_of_the_interval(self, tmp_path: Path) -> None:
        """Checkpoints by duration are numbered by iterations, of which every second is a multiple of 2."""
        hook = CheckpointHook(interval=None, every="1s", keep_every=2, max_keep_ckpts=1, save_last=False)
        fake_training([hook, IterationTime(1)], epochs=2, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["iter_6.pth"]

    def test_pinned_checkpoints_are_kept_after_a_resume(self, tmp_path: Path) -> None:
        for epochs in (4, 7):
            hook = CheckpointHook(max_keep_ckpts=1, keep_every=3, save_last=False)
            fake_training([hook], epochs=epochs, batches=1, work_dir=tmp_path, resume="auto")

        assert list_periodic(tmp_path) == ["epoch_3.pth", "epoch_6.pth", "epoch_7.pth"]


class SaveRequester(Hook):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.at:
            run.request_save("please")


class TestRequestedSave:
    def test_save_within_an_epoch_has_the_name_of_the_iteration(self, tmp_path: Path) -> None:
        hook = CheckpointHook(save_last=False)
        fake_training([hook, SaveRequester(at=4)], epochs=2, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["epoch_1.pth", "epoch_2.pth", "iter_4.pth"]
        assert read_checkpoint(tmp_path / "checkpoints/epoch_1.pth")["meta"]["iter"] == 3

    def test_requested_save_counts_for_retention(self, tmp_path: Path) -> None:
        class PermanentRequester(Hook):
            def after_train_iter(self, run: Run) -> None:
                run.request_save("please")

        hook = CheckpointHook(interval=None, save_last=False, max_keep_ckpts=2)
        fake_training([hook, PermanentRequester()], epochs=1, work_dir=tmp_path)

        assert list_periodic(tmp_path) == ["iter_2.pth", "iter_3.pth"]


class TestMultipleRuns:
    def test_continued_run_removes_the_checkpoints_of_its_first_part(self, tmp_path: Path) -> None:
        model = nn.Linear(1, 1)
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            functional.mse_loss,
            [(torch.ones(1, 1), torch.ones(1, 1))],
            epochs=3,
            hooks=[CheckpointHook(max_keep_ckpts=2)],
            default_hooks=False,
            work_dir=tmp_path,
        )
        trainer.fit()
        trainer.fit(epochs=5)

        assert list_periodic(tmp_path) == ["epoch_4.pth", "epoch_5.pth"]
        assert verify(tmp_path / "checkpoints/last.pth").generation == 5

    def test_fresh_run_ignores_the_previous_run(self, tmp_path: Path) -> None:
        bus = HookBus([CheckpointHook(interval=None, save_best=False)])
        for name in ("a", "b"):
            fake_training(bus=bus, epochs=1, work_dir=tmp_path / name, fresh=True)

        assert verify(tmp_path / "b/checkpoints/last.pth").generation == 1
