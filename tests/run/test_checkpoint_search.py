"""Search for the checkpoint of an automatic resume, and the runs that it refuses to start over."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import HookBus
from hookbus._run.checkpoint_search import find_checkpoint
from hookbus._run.status import STATUS, read_status
from hookbus.errors import ConfigError, WorkDirError
from tests import toys


def damage(path: Path) -> None:
    """Change the last byte of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def damage_all(checkpoints: Path) -> None:
    for path in checkpoints.glob("*.pth"):
        damage(path)


def delete_all(checkpoints: Path) -> None:
    for path in checkpoints.glob("*.pth"):
        path.unlink()


def delete_sidecars(checkpoints: Path) -> None:
    for path in checkpoints.glob("*.json"):
        path.unlink()


def replace_by_those_of_another_run(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    other = checkpoints.parent.parent / "other"
    toys.trainer(toys.Saver(), iterations=2, work_dir=other).fit()
    (other / "checkpoints").rename(checkpoints)


def replace_by_directories(checkpoints: Path) -> None:
    for path in checkpoints.glob("*.pth"):
        path.unlink()
        path.mkdir()


def replace_by_a_file(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    checkpoints.write_text("not a directory")


def save_weights_only(checkpoints: Path) -> None:
    from hookbus.checkpoint.atomic_files import atomic_write
    from hookbus.checkpoint.sidecars import read_sidecar

    for path in checkpoints.glob("*.pth"):
        sidecar = read_sidecar(path)
        assert sidecar is not None
        atomic_write(path, lambda file: torch.save({"state_dict": {}}, file), sidecar.generation, sidecar.run)


UNUSABLE: list[tuple[Callable[[Path], object], str]] = [
    (damage_all, "iter_1.pth: corrupted: checksum mismatch."),
    (delete_all, "iter_1.pth: only the sidecar iter_1.pth.json exists: the file was deleted, or the save was"),
    (delete_sidecars, "iter_1.pth: iter_1.pth.json is missing or corrupted. A file without a valid sidecar is used"),
    (shutil.rmtree, "records a run with 0 epochs and 2 iterations that saved "),
    (replace_by_those_of_another_run, "iter_1.pth: belongs to another run."),
    (replace_by_directories, "iter_1.pth: "),
    (replace_by_a_file, "checkpoints: cannot be read: Not a directory."),
    (save_weights_only, "iter_1.pth: Not a checkpoint to resume from: it has no meta, hooks, rng, loop."),
]


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the time of modification of each file."""
    files = (path for path in directory.rglob("*") if path.is_file() and "lock" not in path.name)
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def train_with_trainer(work_dir: Path) -> None:
    toys.trainer(toys.Saver(), iterations=3, work_dir=work_dir, resume="auto").fit()


def train_with_loop(work_dir: Path) -> None:
    bus, model = HookBus([toys.Saver()]), toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options: dict[str, Any] = {"model": model, "optimizer": optimizer, "work_dir": work_dir, "resume": "auto"}
    with bus.run(iterations=3, **options) as run:
        for _ in toys.run_custom_loop(bus, run, toys.pairs(), model, optimizer):
            pass


def check(work_dir: Path) -> None:
    toys.trainer(toys.Saver(), iterations=3, work_dir=work_dir, resume="auto").check()


class TestUnusableCheckpoints:
    @pytest.mark.parametrize("start", [train_with_trainer, train_with_loop, check], ids=lambda start: start.__name__)
    @pytest.mark.parametrize(("make_unusable", "reason"), UNUSABLE, ids=lambda case: getattr(case, "__name__", ""))
    def test_run_without_a_usable_checkpoint_stops_and_modifies_no_file(
        self,
        tmp_path: Path,
        make_unusable: Callable[[Path], object],
        reason: str,
        start: Callable[[Path], None],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        work_dir = tmp_path / "x"
        toys.trainer(toys.Saver(), iterations=2, work_dir=work_dir).fit()
        make_unusable(work_dir / "checkpoints")
        before = snapshot(work_dir)
        with pytest.raises(ConfigError) as caught:
            start(work_dir)

        assert str(work_dir / "checkpoints") in str(caught.value)
        assert reason in str(caught.value)
        assert snapshot(work_dir) == before
        assert caplog.messages == []

    @pytest.mark.parametrize("status", ["", "{", "missing"])
    @pytest.mark.parametrize(("make_unusable", "reason"), UNUSABLE[:3], ids=lambda case: getattr(case, "__name__", ""))
    def test_run_with_an_invalid_status_stops_as_well(
        self, tmp_path: Path, status: str, make_unusable: Callable[[Path], object], reason: str
    ) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        make_unusable(tmp_path / "checkpoints")
        if status == "missing" and make_unusable is delete_all:
            return  # nothing but sidecars states that there was a run
        (tmp_path / STATUS).unlink() if status == "missing" else (tmp_path / STATUS).write_text(status)
        before = snapshot(tmp_path)
        # If no other file identifies the run, the invalid status is foreign.
        is_foreign = status != "missing" and make_unusable is not damage_all
        with pytest.raises(WorkDirError if is_foreign else ConfigError) as caught:
            train_with_trainer(tmp_path)

        assert (f"{STATUS} was not written by a run" if is_foreign else reason) in str(caught.value)
        assert snapshot(tmp_path) == before

    def test_at_most_10_files_are_listed(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=13, work_dir=tmp_path).fit()
        damage_all(tmp_path / "checkpoints")
        with pytest.raises(ConfigError) as caught:
            train_with_trainer(tmp_path)

        (problem,) = caught.value.problems
        lines = problem.splitlines()
        assert [line.strip().split(": ")[1] for line in lines[1:-1]] == ["corrupted"] * 10
        assert lines[-1] == "  and 3 more"

    def test_directory_that_cannot_be_listed_stops_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Also before the first checkpoint is recorded: it may be in that directory.
        toys.trainer(iterations=2, work_dir=tmp_path).fit()
        (tmp_path / "checkpoints").mkdir()

        def fail(path: Any) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        monkeypatch.setattr(os, "listdir", fail)
        with pytest.raises(ConfigError, match="checkpoints: cannot be read: Input/output error"):
            train_with_trainer(tmp_path)

    def test_names_with_escape_sequences_are_escaped(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        delete_sidecars(tmp_path / "checkpoints")
        (tmp_path / "checkpoints" / "iter_1.pth").rename(tmp_path / "checkpoints" / "\x1b[31m.pth")
        with pytest.raises(ConfigError) as caught:
            train_with_trainer(tmp_path)
        assert "\x1b" not in str(caught.value)
        assert r"\x1b[31m.pth" in str(caught.value)


class TestFindCheckpoint:
    def test_directories_are_searched_until_a_valid_checkpoint_is_found(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path / "x").fit()
        first, second = tmp_path / "x" / "checkpoints", tmp_path / "second"
        shutil.copytree(first, second)
        damage_all(first)
        damage(second / "iter_2.pth")
        checkpoint = find_checkpoint([first, tmp_path / "missing", second], tmp_path / "x")

        assert checkpoint is not None
        assert (checkpoint.path, checkpoint.run) == (second / "iter_1.pth", read_status(tmp_path / "x")["run"])
        assert [problem.partition(": ")[0] for problem in checkpoint.problems] == [
            f"{first}/iter_2.pth",
            f"{first}/iter_1.pth",
            f"{second}/iter_2.pth",
        ]

    def test_newer_checkpoints_of_another_run_are_ignored(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path / "x").fit()
        toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path / "other").fit()
        directory = tmp_path / "x" / "checkpoints"
        for suffix in ("", ".json"):
            shutil.copy(tmp_path / "other" / "checkpoints" / f"iter_3.pth{suffix}", directory)
        checkpoint = find_checkpoint([directory], tmp_path / "x")

        assert checkpoint is not None
        assert checkpoint.path == directory / "iter_2.pth"

    def test_checkpoints_of_several_runs_without_a_status_are_ambiguous(self, tmp_path: Path) -> None:
        toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path / "x").fit()
        toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path / "other").fit()
        directory = tmp_path / "x" / "checkpoints"
        for suffix in ("", ".json"):
            shutil.copy(tmp_path / "other" / "checkpoints" / f"iter_3.pth{suffix}", directory)
        (tmp_path / "x" / STATUS).unlink()
        with pytest.raises(ConfigError, match=r"checkpoints: contains checkpoints of 2 runs, and no status\.json"):
            find_checkpoint([directory], tmp_path / "x")

    def test_directory_without_a_run_has_no_checkpoint(self, tmp_path: Path) -> None:
        assert find_checkpoint([tmp_path / "checkpoints"], tmp_path) is None
        (tmp_path / "checkpoints").mkdir()
        assert find_checkpoint([tmp_path / "checkpoints"], tmp_path) is None

    def test_run_that_was_killed_during_its_first_save_has_no_checkpoint(self, tmp_path: Path) -> None:
        toys.trainer(iterations=2, work_dir=tmp_path).fit()
        other = toys.trainer(toys.Saver(), iterations=1, work_dir=tmp_path / "other")
        other.fit()
        (tmp_path / "checkpoints").mkdir()
        shutil.copy(tmp_path / "other" / "checkpoints" / "iter_1.pth.json", tmp_path / "checkpoints")
        assert find_checkpoint([tmp_path / "checkpoints"], tmp_path) is None


class TestRestart:
    def test_new_work_dir_starts_without_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        train_with_trainer(tmp_path / "x")
        train_with_loop(tmp_path / "y")
        assert caplog.messages == []

    @pytest.mark.parametrize("start", [train_with_trainer, train_with_loop], ids=lambda start: start.__name__)
    def test_run_that_committed_no_checkpoint_restarts_with_one_warning(
        self, tmp_path: Path, start: Callable[[Path], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        first = toys.trainer(iterations=2, work_dir=tmp_path).fit()
        start(tmp_path)
        assert (read_status(tmp_path)["iters_done"], read_status(tmp_path)["run"]) == (3, first.id)
        assert len(caplog.messages) == 1

    @pytest.mark.parametrize("status", ["", "missing"])
    def test_run_with_an_invalid_status_resumes_and_records_its_checkpoint(self, tmp_path: Path, status: str) -> None:
        first = toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        (tmp_path / STATUS).write_text("") if status == "" else (tmp_path / STATUS).unlink()
        bus, seen = HookBus([toys.Saver("after_train")]), []
        bus.on("before_run")(lambda run: seen.append(run.id))
        bus.on("before_train", name="recorded")(lambda: seen.append(read_status(tmp_path)["checkpoint"]))
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with bus.run(model=model, optimizer=optimizer, iterations=3, work_dir=tmp_path, resume="auto") as run:
            bus.emit("before_train")
        assert (seen, run.id) == ([first.id, "checkpoints/iter_2.pth"], first.id)
