"""Failed saves: restored state, remaining files, and messages."""

from __future__ import annotations

import os
import re
import resource
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook
from hookbus._run.run import Run
from hookbus.checkpoint.sidecars import verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointError, HookWarning
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_checkpoint.saving import iter_tensors
from tests.crashes import run_in_fork

Scores = {1: 0.5, 2: 0.9, 3: 0.95}


def train(directory: Path, *hooks: Hook, epochs: int = 3, **options: Any) -> Any:
    return fake_training(
        hooks, epochs=epochs, scores=lambda epoch: {"accuracy": Scores[epoch]}, work_dir=directory, **options
    ).run


def names(directory: Path) -> set[str]:
    return {path.name for path in (directory / "checkpoints").iterdir() if path.suffix != ".json"}


class FileSizeLimit(Hook):
    """Limit the size of files of this process after the first epoch, up to an epoch."""

    def __init__(self, limit: int, until_epoch: int = 99) -> None:
        super().__init__()
        self.limit, self.until = limit, until_epoch

    def before_epoch(self, run: Run, epoch: int) -> None:
        run.require("checkpoint_saver").wait_for_pending(run)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit = self.limit if 1 <= epoch < self.until else unlimited
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited))


@pytest.mark.parametrize("mode", [False, True, "overlap"])
@pytest.mark.parametrize("limit", [3_000, 20_000])
class TestNoSpaceLeft:
    """Tests in child processes, because the limit applies to the process."""

    def test_failed_save_ends_the_run_and_keeps_existing_files(self, tmp_path: Path, mode: Any, limit: int) -> None:
        def fill() -> None:
            hook = CheckpointHook(max_keep_ckpts=1, async_save=mode)
            with pytest.raises(CheckpointError) as error:
                train(tmp_path, hook, FileSizeLimit(limit))
            (tmp_path / "message").write_text(str(error.value))

        assert run_in_fork(fill) == 0
        assert names(tmp_path) == {"epoch_1.pth", "best_accuracy.pth", "last.pth"}
        assert {verify(path).generation for path in (tmp_path / "checkpoints").glob("*.pth")} == {1}
        message = (tmp_path / "message").read_text()
        assert re.search(
            r"epoch_2.pth could not be written: .*File too large.* About [\d,]+ bytes are required, "
            r"and [\d,]+ are available. Existing files are unchanged.",
            message,
        )

    def test_failed_save_is_a_warning_and_the_next_save_succeeds(self, tmp_path: Path, mode: Any, limit: int) -> None:
        def fill() -> None:
            hook = CheckpointHook(max_keep_ckpts=1, async_save=mode, on_save_error="warn")
            with warnings.catch_warnings(record=True) as records:
                warnings.simplefilter("always")
                run = train(tmp_path, hook, FileSizeLimit(limit, until_epoch=2))
            messages = [str(record.message) for record in records if record.category is HookWarning]
            assert len(messages) == 1, messages
            assert "epoch_2.pth could not be written" in messages[0]
            assert messages[0].endswith("Training continues.")
            assert run.outcome == "finished"

        assert run_in_fork(fill) == 0
        assert names(tmp_path) == {"epoch_3.pth", "best_accuracy.pth", "last.pth"}
        stored = read_checkpoint(tmp_path / "checkpoints/best_accuracy.pth")
        assert (stored["meta"]["epoch"], stored["loop"]["best"]["val/accuracy"]["value"]) == (3, 0.95)


def test_message_contains_the_required_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: Any, file: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    shared = torch.zeros(1_000_000)

    class Large(Hook):
        def state_dict(self) -> dict[str, Any]:
            return {"large": shared, "again": shared[1:]}

    with pytest.raises(CheckpointError) as error:
        train(tmp_path, CheckpointHook(), Large())
    required = re.search(r"About ([\d,]+) bytes are required", str(error.value))
    assert required is not None
    assert 4_000_000 < int(required[1].replace(",", "")) < 4_050_000


class TestFailedLinks:
    def test_checkpoint_without_its_links_counts_for_retention(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The best and last links of epoch 2 cannot be created, the checkpoint itself can."""
        real, replaced = os.replace, []

        def replace(source: Any, target: Any) -> None:
            replaced.append(Path(target).name)
            if Path(target).name == "best_accuracy.pth" and replaced.count("best_accuracy.pth") == 2:
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        hook = CheckpointHook(max_keep_ckpts=1, on_save_error="warn")
        bests: list[float] = []

        class BestRecorder(Hook):
            def before_train_epoch(self) -> None:
                bests.extend(best.value for best in self.run.best.values())

        with pytest.warns(HookWarning, match=r"epoch_2.pth could not be written"):
            train(tmp_path, hook, BestRecorder())

        assert bests == [0.5, 0.5]  # the best file still contains epoch 1
        assert names(tmp_path) == {"epoch_3.pth", "best_accuracy.pth", "last.pth"}

    def test_best_result_is_kept_if_its_link_was_created(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real, replaced = os.replace, []

        def replace(source: Any, target: Any) -> None:
            replaced.append(Path(target).name)
            if Path(target).name == "last.pth" and replaced.count("last.pth") == 2:
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.warns(HookWarning, match=r"epoch_2.pth could not be written"):
            run = train(tmp_path, CheckpointHook(on_save_error="warn"), epochs=2)

        best = run.best["val/accuracy"]
        assert (best.value, best.epoch) == (0.9, 2)
        assert read_checkpoint(tmp_path / "checkpoints/best_accuracy.pth")["meta"]["epoch"] == 2
        assert read_checkpoint(tmp_path / "checkpoints/last.pth")["meta"]["epoch"] == 2  # repeated at the end


def test_tensors_that_share_memory_are_yielded_once() -> None:
    one, other = torch.zeros(4), torch.ones(4)
    tensors = list(iter_tensors({"a": one, "b": [one[1:], (other, {"c": one.view(2, 2)})], "d": "text", "e": None}))

    assert sorted(tensor.sum().item() for tensor in tensors) == [0, 4]
