"""Failed saves: restored state, remaining files, and messages."""

from __future__ import annotations

import errno
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
from hookbus.checkpoint import CheckpointStore
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.checkpoint.sidecars import read_sidecar, verify
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointError, HookWarning
from hookbus.testing import fake_training
from hookbus_checkpoint import CheckpointHook
from hookbus_checkpoint.directory import CheckpointDirectory
from hookbus_checkpoint.saving import count_bytes
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
@pytest.mark.parametrize("limit", [3_000, 19_500])
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


def test_memory_that_tensors_share_counts_once() -> None:
    one, other = torch.zeros(4), torch.ones(4, dtype=torch.float64)
    shared = {"a": one, "b": [one[1:], (other, {"c": one.view(2, 2)})], "d": "text", "e": torch.ones(0)}

    assert count_bytes(shared) == 4 * 4 + 4 * 8


def save(
    directory: CheckpointDirectory, periodic: str | None, best: list[str], last: str | None, keep: int | None = None
) -> None:
    plan = directory.plan([periodic] if periodic else [], best, last)
    directory.scan()
    directory.begin(plan)
    atomic_write(plan.path, lambda file: file.write(plan.path.name.encode()), directory.generation)
    directory.keep = keep
    directory.finish(plan)


def test_periodic_name_is_written_and_the_others_are_links(tmp_path: Path) -> None:
    plan = CheckpointDirectory(CheckpointStore(tmp_path)).plan(["epoch_1.pth"], ["best_a.pth"], "last.pth")

    assert plan.path == tmp_path / "epoch_1.pth"
    assert plan.links == (tmp_path / "best_a.pth", tmp_path / "last.pth")
    assert plan.counted == ("epoch_1.pth",)
    assert plan.is_best


def test_best_name_is_written_without_a_periodic_name(tmp_path: Path) -> None:
    plan = CheckpointDirectory(CheckpointStore(tmp_path)).plan([], ["best_a.pth"], None)

    assert plan.path == tmp_path / "best_a.pth"
    assert plan.counted == ()


def test_generation_exceeds_those_of_existing_files(tmp_path: Path) -> None:
    atomic_write(tmp_path / "epoch_9.pth", lambda file: file.write(b"older run"), 41)
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    save(directory, "epoch_1.pth", [], None)

    sidecar = read_sidecar(tmp_path / "epoch_1.pth")
    assert sidecar is not None
    assert sidecar.generation == 42


def test_repeated_name_counts_once(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    for _ in range(3):
        save(directory, "epoch_1.pth", [], "last.pth", keep=1)

    assert directory.periodic == ["epoch_1.pth"]
    assert (tmp_path / "epoch_1.pth").exists()


def test_names_without_a_file_are_removed_from_the_state(tmp_path: Path) -> None:
    (tmp_path / "epoch_2.pth").touch()
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    directory.load({"periodic": ["epoch_1.pth", "epoch_2.pth"], "ranked": {}, "superseded": {}}, generation=3)

    assert (directory.periodic, directory.generation) == (["epoch_2.pth"], 3)


def test_name_of_a_foreign_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "last.pth").touch()
    atomic_write(tmp_path / "last-2.pth", lambda file: file.write(b"other"), 1, "other")
    atomic_write(tmp_path / "epoch_1.pth", lambda file: file.write(b"mine"), 1, "mine")
    (tmp_path / "epoch_2.pth").symlink_to(tmp_path / "nowhere")
    directory = CheckpointDirectory(CheckpointStore(tmp_path, "mine"))

    names = ("last.pth", "epoch_1.pth", "epoch_2.pth", "epoch_3.pth")
    assert [directory.available_name(name) for name in names] == [
        "last-3.pth",
        "epoch_1.pth",
        "epoch_2-2.pth",
        "epoch_3.pth",
    ]
    assert directory.foreign_checkpoints() == [tmp_path / "last-2.pth"]


def test_replaced_file_is_not_removed(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    save(directory, "epoch_1.pth", [], None)
    (tmp_path / "epoch_1.pth").write_text("mine")
    (tmp_path / "epoch_1.pth.json").unlink()
    save(directory, "epoch_2.pth", [], None, keep=1)

    assert (tmp_path / "epoch_1.pth").read_text() == "mine"
    assert directory.periodic == ["epoch_2.pth"]


@pytest.mark.parametrize("method", ["write", "rename"])
def test_name_of_a_replaced_last_file_is_not_used(tmp_path: Path, method: str) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path, "mine"))
    plan = directory.plan(["epoch_1.pth"], [], "last.pth")
    atomic_write(plan.path, lambda file: file.write(b"mine"), 1, "mine")
    directory.finish(plan)
    assert directory.available_name("last.pth") == "last.pth"

    if method == "write":
        (tmp_path / "last.pth").write_text("other")
    else:
        (tmp_path / "other").write_text("other")
        (tmp_path / "other").rename(tmp_path / "last.pth")
    (tmp_path / "last.pth.json").unlink()

    assert directory.available_name("last.pth") == "last-2.pth"


def test_pinned_file_does_not_count(tmp_path: Path) -> None:
    plan = CheckpointDirectory(CheckpointStore(tmp_path)).plan(
        ["epoch_10.pth", "iter_30.pth"], [], None, pinned=["epoch_10.pth"]
    )

    assert plan.counted == ("iter_30.pth",)


def test_file_is_stale_if_it_is_older_than_the_latest_or_missing(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    assert directory.is_stale("last.pth")
    save(directory, "epoch_1.pth", [], "last.pth")
    assert not directory.is_stale("last.pth")
    save(directory, "epoch_2.pth", [], None)
    assert directory.is_stale("last.pth")
    assert not directory.is_stale("epoch_2.pth")
    (tmp_path / "epoch_2.pth").unlink()
    assert directory.is_stale("epoch_2.pth")


def test_name_whose_sidecar_is_foreign_is_not_used(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path, "mine"))
    (tmp_path / "epoch_1.pth.json").write_text("{}")
    (tmp_path / "epoch_2.pth.json").symlink_to(tmp_path / "nowhere")
    for run in ("mine", "other"):
        atomic_write(tmp_path / f"{run}.pth", lambda file: file.write(b"content"), 1, run)
        (tmp_path / f"{run}.pth").unlink()

    names = ("epoch_1.pth", "epoch_2.pth", "mine.pth", "other.pth")
    assert [directory.available_name(name) for name in names] == [
        "epoch_1-2.pth",
        "epoch_2-2.pth",
        "mine.pth",
        "other-2.pth",
    ]


def test_last_file_whose_sidecar_was_replaced_is_not_used(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    save(directory, "epoch_1.pth", [], "last.pth")
    assert directory.available_name("last.pth") == "last.pth"
    (tmp_path / "last.pth.json").write_text("{}")

    assert directory.available_name("last.pth") == "last-2.pth"


def test_checkpoint_that_was_replaced_by_a_link_is_kept(tmp_path: Path) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    save(directory, "epoch_1.pth", [], None)
    (tmp_path / "epoch_1.pth").rename(tmp_path / "moved")
    (tmp_path / "epoch_1.pth").symlink_to(tmp_path / "moved")
    save(directory, "epoch_2.pth", [], None, keep=1)

    assert (tmp_path / "epoch_1.pth").read_bytes() == b"epoch_1.pth"
    assert directory.foreign_checkpoints() == []


@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
def test_generation_whose_name_is_in_use_is_skipped(tmp_path: Path, kind: str) -> None:
    atomic_write(tmp_path / "epoch_3.pth", lambda file: file.write(b"content"), 3)
    for name in ("generation_4", "generation_5"):
        if kind == "directory":
            (tmp_path / name).mkdir()
        elif kind == "file":
            (tmp_path / name).touch()
        else:
            (tmp_path / name).symlink_to(tmp_path / "nowhere")
    (tmp_path / "generation_99").mkdir()

    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    assert directory.scan() == 5
    assert directory.begin(directory.plan(["epoch_6.pth"], [], None)) == 6


def fail_to_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of a name be unreadable, as on a failing disk."""
    real = os.open

    def open_failing(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(path) == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_failing)


def test_excess_file_whose_owner_cannot_be_read_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = CheckpointDirectory(CheckpointStore(tmp_path))
    save(directory, "epoch_1.pth", [], None)
    save(directory, "epoch_2.pth", [], None)
    directory.keep = 1
    fail_to_open("epoch_1.pth.json", monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        directory.remove_excess()
    monkeypatch.undo()
    assert directory.periodic == ["epoch_1.pth", "epoch_2.pth"]

    directory.remove_excess()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch_2.pth", "epoch_2.pth.json"]


def test_own_file_whose_owner_cannot_be_read_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(CheckpointDirectory(CheckpointStore(tmp_path)), "epoch_1.pth", [], "last.pth")
    fail_to_open("last.pth.json", monkeypatch)

    assert CheckpointDirectory(CheckpointStore(tmp_path)).available_name("last.pth") == "last.pth"
    with pytest.raises(OSError, match="Input/output error"):
        save(CheckpointDirectory(CheckpointStore(tmp_path)), "epoch_2.pth", [], "last.pth")
