"""Resume of a run from a checkpoint."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import HookBus
from hookbus._run.acquisition import acquire
from hookbus._run.resume import find_checkpoint
from hookbus._run.run import Run
from hookbus._run.status import CHECKPOINT, STATUS, read_status
from hookbus.errors import CheckpointError, ConfigError, WorkDirError
from tests import toys


def damage(path: Path) -> None:
    """Change the last byte of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


class SaverWithDirectory(toys.Saver):
    """Saver with its own directory."""

    def __init__(self, path: Path) -> None:
        super().__init__("after_train_iter")
        self.path = path

    def directory(self, run: Run) -> Path:
        return self.path

    def plan(self, run: Run, requests: list[Any]) -> Path:
        return self.path / f"iter_{run.iters_done}.pth"


class ConfigWithYaml(dict[str, int]):
    """Configuration that the run writes to its work directory."""

    def to_yaml(self) -> str:
        return "a: 1\n"


class TestResume:
    def test_auto_resume_starts_at_zero_without_a_checkpoint(self, tmp_path: Path) -> None:
        run = toys.trainer(iterations=2, work_dir=tmp_path, resume="auto").fit()
        assert run.iters_done == 2

    def test_auto_resume_continues_from_the_newest_checkpoint_and_logs_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        toys.trainer(toys.Saver(), iterations=4, work_dir=tmp_path).fit()
        bus_events: list[Path] = []
        training = toys.trainer(toys.Saver(), iterations=5, work_dir=tmp_path, resume="auto")
        training.bus.on("after_load_checkpoint")(lambda path: bus_events.append(path))
        caplog.set_level("INFO", "hookbus")
        run = training.fit()
        newest = tmp_path / "checkpoints" / "iter_4.pth"
        assert (bus_events, run.iters_done) == ([newest], 5)
        assert f"Resumed from {newest}: epoch 1, iteration 4, step 4." in caplog.messages

    def test_auto_resume_searches_the_directory_of_the_saver(self, tmp_path: Path) -> None:
        (out_dir := tmp_path / "out").mkdir()
        toys.trainer(SaverWithDirectory(out_dir), iterations=2, work_dir=tmp_path / "x").fit()
        started_at: list[int] = []
        training = toys.trainer(SaverWithDirectory(out_dir), iterations=3, work_dir=tmp_path / "x", resume="auto")
        training.bus.on("before_train")(lambda run: started_at.append(run.iters_done))
        training.fit()
        assert started_at == [2]

    def test_auto_resume_requires_no_work_dir_if_the_saver_has_a_directory(self, tmp_path: Path) -> None:
        toys.trainer(SaverWithDirectory(tmp_path), iterations=2).fit()
        started_at: list[int] = []
        training = toys.trainer(SaverWithDirectory(tmp_path), iterations=3, resume="auto")
        training.bus.on("before_train")(lambda run: started_at.append(run.iters_done))
        training.fit()
        assert started_at == [2]

    def test_auto_resume_without_a_directory_raises_an_error(self) -> None:
        with pytest.raises(CheckpointError, match="requires a work directory, got none. Set `work_dir`"):
            toys.trainer(toys.Saver(), epochs=1, resume="auto").fit()

    def test_auto_resume_skips_a_corrupted_checkpoint_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        saver = toys.Saver()
        toys.trainer(saver, iterations=2, work_dir=tmp_path).fit()
        with saver.files[1].open("r+b") as file:
            file.truncate(10)
        training = toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path, resume="auto")
        started_at: list[int] = []
        training.bus.on("before_train")(lambda run: started_at.append(run.iters_done))
        training.fit()
        assert started_at == [1]
        assert [message for message in caplog.messages if message.startswith(f"resume: {saver.files[1]}: ")] != []

    @pytest.mark.parametrize("problem", ["file does not exist", "corrupted"])
    def test_invalid_file_raises_before_a_directory_is_locked_or_another_one_chosen(
        self, tmp_path: Path, problem: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        work_dir, file = tmp_path / "x", tmp_path / "x" / "checkpoints" / "iter_2.pth"
        toys.trainer(toys.Saver(), iterations=2, work_dir=work_dir).fit()
        if problem == "corrupted":
            damage(file)
        else:
            file.unlink()
        with pytest.raises(CheckpointError, match=problem):
            toys.trainer(toys.Saver(), iterations=3, work_dir=work_dir, resume=file).fit()
        with (
            pytest.raises(CheckpointError, match=problem),
            HookBus().run(epochs=1, work_dir=work_dir, resume=file),
        ):
            pass

        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert caplog.messages == []

    def test_hooks_may_modify_the_checkpoint_before_it_is_restored(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_train_iter", 2)
        toys.trainer(saver, iterations=2, work_dir=tmp_path).fit()
        model = toys.net()
        training = toys.trainer(iterations=2, model=model, resume=saver.files[0])

        def change(run: Run, checkpoint: dict[str, Any]) -> None:
            assert run.iters_done == 0
            checkpoint["state_dict"]["0.weight"] = torch.full((8, 4), 3.0)

        training.bus.on("after_load_checkpoint")(change)
        training.fit()
        assert torch.equal(model.state_dict()["0.weight"], torch.full((8, 4), 3.0))

    def test_custom_loop_resumes_at_its_iteration(self, tmp_path: Path) -> None:
        def train(iterations: int) -> list[tuple[int, int]]:
            bus, seen, model = HookBus([toys.Saver()]), [], toys.net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            options: dict[str, Any] = {"model": model, "optimizer": optimizer, "work_dir": tmp_path, "resume": "auto"}
            bus.on("after_train_iter")(lambda run, batch_idx: seen.append((run.iter, batch_idx)))
            with bus.run(iterations=iterations, **options) as run:
                for _ in toys.run_custom_loop(bus, run, toys.pairs(), model, optimizer):
                    pass
            return seen

        assert train(2) == [(0, 0), (1, 1)]
        assert train(5) == [(2, 2), (3, 0), (4, 1)]


class TestRecordedRun:
    """An automatic resume in a work directory whose run has committed checkpoints that are not found."""

    @staticmethod
    def content(directory: Path) -> dict[str, bytes]:
        files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".hookbus.lock")
        return {str(path.relative_to(directory)): path.read_bytes() for path in files}

    @pytest.mark.parametrize("problem", ["moved", "empty", "of another run"])
    def test_recorded_run_without_its_checkpoints_raises_and_modifies_nothing(
        self, tmp_path: Path, problem: str
    ) -> None:
        work_dir, out_dir = tmp_path / "x", tmp_path / "out"
        out_dir.mkdir()
        toys.trainer(SaverWithDirectory(out_dir), iterations=2, work_dir=work_dir, config={"a": 1}).fit()
        out_dir.rename(tmp_path / "moved")
        if problem == "empty":
            out_dir.mkdir()
        if problem == "of another run":
            out_dir.mkdir()
            toys.trainer(SaverWithDirectory(out_dir), iterations=1).fit()
        before, events = self.content(work_dir), []
        training = toys.trainer(SaverWithDirectory(out_dir), iterations=3, work_dir=work_dir, resume="auto")
        for point in ("before_run", "on_exception", "after_run", "cleanup"):
            training.bus.on(point, name=point)(lambda: events.append("called"))
        for _ in range(2):
            with pytest.raises(
                ConfigError,
                match=rf"run with 0 epochs and 2 iterations .* found in {out_dir}\. .*correct `out_dir`.*`--ov",
            ):
                training.fit()

        assert self.content(work_dir) == before
        assert events == []
        acquire(work_dir, resume=True).release()

    def test_recorded_run_without_its_checkpoints_raises_in_a_custom_loop(self, tmp_path: Path) -> None:
        saver = toys.Saver()
        toys.trainer(saver, iterations=2, work_dir=tmp_path).fit()
        for path in saver.files:
            path.unlink()
        before = self.content(tmp_path)
        with (
            pytest.raises(ConfigError, match="no checkpoint of that run was found in"),
            HookBus([toys.Saver()]).run(epochs=1, work_dir=tmp_path, resume="auto"),
        ):
            pass

        assert self.content(tmp_path) == before

    def test_recorded_run_raises_after_a_kill_and_after_a_failed_resume(self, tmp_path: Path) -> None:
        # The first commit is recorded at once, and a status of a later attempt does not erase the record.
        killed: list[bytes] = []
        training = toys.trainer(toys.Saver("after_train_iter", 1), iterations=2, work_dir=tmp_path)
        training.bus.on("before_train_iter")(lambda: killed.append((tmp_path / STATUS).read_bytes()))
        training.fit()
        assert b'"checkpoint": null' in killed[0]
        (tmp_path / STATUS).write_bytes(killed[1])
        training = toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path, resume="auto")

        def fail() -> None:
            raise RuntimeError("broken hook")

        training.bus.on("before_run")(fail)
        with pytest.raises(RuntimeError, match="broken hook"):
            training.fit()
        assert read_status(tmp_path)["checkpoint"] == "checkpoints/iter_1.pth"
        (tmp_path / "checkpoints").rename(tmp_path / "moved")
        with pytest.raises(ConfigError, match="no checkpoint of that run was found in"):
            toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path, resume="auto").fit()

    def test_recorded_run_without_a_saved_checkpoint_restarts_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = toys.trainer(iterations=2, work_dir=tmp_path).fit()
        second = toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path, resume="auto").fit()

        assert (second.iters_done, second.id, read_status(tmp_path)["run"]) == (3, first.id, first.id)
        assert caplog.messages == [
            f"resume: the run in {tmp_path} stopped before it saved a checkpoint (2 iterations are recorded). Training "
            "restarts from iteration 0, and the logs of that run are kept under another name."
        ]

    def test_recorded_run_without_its_checkpoints_can_be_overwritten(self, tmp_path: Path) -> None:
        toys.trainer(SaverWithDirectory(tmp_path), iterations=2, work_dir=tmp_path / "x").fit()
        run = toys.trainer(iterations=1, work_dir=tmp_path / "x", overwrite=True).fit()

        assert (run.iters_done, read_status(tmp_path / "x")["checkpoint"]) == (1, None)

    @pytest.mark.parametrize("status", ["", "{", "missing", "without the key"])
    def test_recorded_run_of_unknown_progress_raises_and_modifies_nothing(self, tmp_path: Path, status: str) -> None:
        work_dir = tmp_path / "run"
        toys.trainer(toys.Saver(), iterations=2, work_dir=work_dir, config=ConfigWithYaml(a=1)).fit()
        (work_dir / "checkpoints").rename(tmp_path / "moved")
        if status == "missing":
            (work_dir / STATUS).unlink()
        elif status == "without the key":
            fields = {key: value for key, value in read_status(work_dir).items() if key != CHECKPOINT}
            (work_dir / STATUS).write_text(json.dumps(fields))
        else:
            (work_dir / STATUS).write_text(status)
        before = self.content(work_dir)

        with pytest.raises(ConfigError, match="no checkpoint of that run was found in"):
            toys.trainer(toys.Saver(), iterations=3, work_dir=work_dir, resume="auto").fit()
        assert self.content(work_dir) == before

    def test_recorded_run_with_an_invalid_status_resumes_from_its_checkpoints(self, tmp_path: Path) -> None:
        first = toys.trainer(toys.Saver(), iterations=2, work_dir=tmp_path).fit()
        (tmp_path / STATUS).write_text("{")
        started_at: list[int] = []
        training = toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path, resume="auto")
        training.bus.on("before_train")(lambda run: started_at.append(run.iters_done))
        assert (training.fit().id, started_at) == (first.id, [2])

    def test_work_dir_of_a_validation_contains_no_training_run(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path)
        work_dir.register_output(tmp_path / "logs")
        work_dir.release()
        assert toys.trainer(toys.Saver(), iterations=1, work_dir=tmp_path, resume="auto").fit().iters_done == 1


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
