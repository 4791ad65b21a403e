"""Removal of the files of runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hookbus._run.acquisition import acquire, lock_directory
from hookbus._run.directory_lock import acquire_lock
from hookbus._run.recorded_run import RecordedRun
from hookbus._run.run_removal import remove_partial_files
from hookbus._run.status import read_status
from hookbus._run.work_dir import WorkDir
from hookbus.checkpoint.atomic_files import atomic_write, make_temporary_name
from tests.crashes import kill_at_each_operation


def write_run(path: Path, run: str) -> None:
    """Write the files of a run, and one of the user."""
    work_dir = acquire(path)
    work_dir.write_status(outcome="running", run=run)
    work_dir.write_config("a: 1\n", run)
    work_dir.register_output(path / "logs" / "log.txt")
    (work_dir.directory("logs") / "log.txt").write_text("1")
    (path / "logs" / "notes.txt").write_text("mine")
    for name in ("epoch_1.pth", "epoch_2.pth"):
        atomic_write(path / "checkpoints" / name, lambda file: file.write(b"weights"), 1, run)
    work_dir.release()


def get_files(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=["new", "resume", "overwrite"])
def test_overwrite_that_is_killed_is_completed_by_the_next_run(tmp_path: Path, options: dict[str, bool]) -> None:
    path, states = tmp_path / "x", set[str]()

    def overwrite() -> None:
        work_dir = acquire(path, overwrite=True)
        work_dir.begin("second")
        work_dir.write_status(outcome="running", run="second")
        work_dir.release()

    def check_and_restore() -> None:
        if path.exists():
            status = read_status(path)
            states.add(status.get("run", ""))
            if status.get("run") != "first":  # the removal has begun
                work_dir: WorkDir = acquire(path, **options)
                assert work_dir.recorded_run in ("", "second")
                files = get_files(path) if work_dir.path == path else get_files(path) - {"status.json"}
                assert files - {"status.json"} == {".hookbus.lock", "logs/notes.txt"}
                work_dir.release()
            for directory in tmp_path.iterdir():
                shutil.rmtree(directory)
        write_run(path, "first")

    assert kill_at_each_operation(overwrite, check_and_restore) > 20
    assert states == {"first", "", "second"}


def test_overwritten_run_is_removed_from_other_directories_also_after_a_kill(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "first")
    out_dir = tmp_path / "out"
    for run in ("first", "other"):
        atomic_write(out_dir / f"{run}.pth", lambda file: file.write(b"weights"), 1, run)
    killed = acquire(tmp_path / "x", overwrite=True)
    killed.write_status(outcome="running", run="second")
    killed.release()
    assert read_status(tmp_path / "x")["overwritten"] == ["first"]

    work_dir = acquire(tmp_path / "x", resume=True)
    lock_directory(out_dir, "second", work_dir.removed_runs)()
    work_dir.write_status(outcome="finished", run="second")
    work_dir.release()
    assert get_files(out_dir) == {".hookbus.lock", "other.pth", "other.pth.json"}
    assert "overwritten" not in read_status(tmp_path / "x")


def test_overwrite_keeps_links_in_the_place_of_outputs(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "first")
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "x" / "logs" / "log.txt").unlink()
    (tmp_path / "x" / "logs" / "log.txt").symlink_to(tmp_path / "thesis.txt")
    work_dir = acquire(tmp_path / "x", overwrite=True)
    work_dir.release()

    assert os.readlink(tmp_path / "x" / "logs" / "log.txt") == str(tmp_path / "thesis.txt")
    assert [path.name for path in work_dir.kept_files] == ["log.txt", "notes.txt"]


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=["new", "resume", "overwrite"])
def test_temporary_files_of_a_run_that_was_killed_at_its_start_are_removed(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    work_dir = acquire(tmp_path)
    work_dir.begin("killed")
    (tmp_path / make_temporary_name("killed")).write_text("half")  # the first status.json
    (tmp_path / make_temporary_name("other")).write_text("half")
    work_dir.release()
    acquire(tmp_path, **options).release()

    assert [path.name[:11] for path in tmp_path.glob(".tmp*")] == [".tmp-other-"]


def test_temporary_files_are_removed_in_all_directories_with_outputs(tmp_path: Path) -> None:
    work_dir = acquire(tmp_path)
    work_dir.write_status(outcome="running", run="me")
    folders = ("checkpoints", "checkpoints/generation_1", "logs/run", "visualization/a/b", "traces/0", "notes")
    work_dir.register_output(tmp_path / "traces")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / make_temporary_name("me")).write_text("half")
    work_dir.release()
    acquire(tmp_path, resume=True).release()

    assert [path.parent.name for path in tmp_path.rglob(".tmp*")] == ["notes"]


def test_work_directories_with_one_out_dir_keep_the_files_of_each_other(tmp_path: Path) -> None:
    for run in ("first", "second"):
        (tmp_path / make_temporary_name(run)).write_text("half")
        atomic_write(tmp_path / f"{run}.pth", lambda file: file.write(b"weights"), 1, run)
    lock_directory(tmp_path, "second")()

    assert {name[:10] for name in get_files(tmp_path) if name.startswith(".tmp")} == {".tmp-first"}
    assert {"first.pth", "first.pth.json", "second.pth"} <= get_files(tmp_path)


@pytest.mark.parametrize("copy", ["with hidden files", "without hidden files"])
def test_copy_of_a_work_directory_can_be_overwritten(tmp_path: Path, copy: str) -> None:
    write_run(tmp_path / "x", "first")
    ignore = shutil.ignore_patterns(".*") if copy == "without hidden files" else None
    shutil.copytree(tmp_path / "x", tmp_path / "y", ignore=ignore)
    before = get_files(tmp_path / "x")
    work_dir = acquire(tmp_path / "y", overwrite=True)
    work_dir.release()

    # The files of the run in other directories belong to the original.
    assert work_dir.removed_runs == ()
    assert get_files(tmp_path / "y") == {".hookbus.lock", "logs/notes.txt"}
    assert get_files(tmp_path / "x") == before


@pytest.mark.parametrize("lost", [["status.json"], ["status.json", ".made"], ["status.json", ".made", "config.yaml"]])
def test_run_without_its_status_can_be_overwritten(tmp_path: Path, lost: list[str]) -> None:
    write_run(tmp_path / "x", "first")
    for name in lost:
        (tmp_path / "x" / name).unlink()
    recorded = RecordedRun.read(tmp_path / "x")
    assert (recorded.run, recorded.is_training, recorded.problem) == ("first", True, "")
    acquire(tmp_path / "x", overwrite=True).release()

    # Without any list, the log is not known to be one of the run.
    kept = {"logs/log.txt"} if ".made" in lost else set()
    assert get_files(tmp_path / "x") == {".hookbus.lock", "logs/notes.txt", *kept}


def test_partial_files_are_removed_unless_the_directory_is_in_use(tmp_path: Path) -> None:
    own, other = (tmp_path / make_temporary_name(run) for run in ("own", "other"))
    own.touch()
    other.touch()
    lock = acquire_lock(tmp_path, required=True)
    assert lock is not None
    remove_partial_files(tmp_path, ["own"])
    assert own.exists()

    lock.release()
    remove_partial_files(tmp_path, ["own"])
    assert (own.exists(), other.exists()) == (False, True)


def test_missing_directory_is_not_created(tmp_path: Path) -> None:
    remove_partial_files(tmp_path / "missing", ["own"])

    assert list(tmp_path.iterdir()) == []


def test_renamed_work_directory_is_not_a_copy(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "first")
    (tmp_path / "x").rename(tmp_path / "y")
    (tmp_path / "x").symlink_to(tmp_path / "y")
    work_dir = acquire(tmp_path / "y", overwrite=True)
    work_dir.release()

    assert work_dir.removed_runs == ("first",)
