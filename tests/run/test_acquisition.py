"""Acquisition of directories for a run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus._run.acquisition import acquire, lock_directory, preview, remove_partial_files
from hookbus._run.directory_lock import acquire_lock
from hookbus._run.recorded_run import RecordedRun
from hookbus._run.status import STATUS, read_status
from hookbus._run.work_dir import WorkDir
from hookbus.checkpoint.atomic_files import atomic_write, make_temporary_name
from hookbus.checkpoint.generations import write_manifest
from hookbus.errors import WorkDirError
from tests.crashes import kill_at_each_operation, run_in_fork


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `fsync`: no test depends on a loss of power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


HOLDER = """
import os, sys, time
from pathlib import Path
from hookbus._run.acquisition import acquire

work_dir = acquire(Path(sys.argv[1]))
if "forks" in sys.argv:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(1)
        os.write(write, b"alive")
        time.sleep(60)
    os.read(read, 5)
    print(child, flush=True)
print("locked", flush=True)
time.sleep(60)
"""


class Holder:
    """Process that has locked a work directory."""

    def __init__(self, path: Path, *options: str) -> None:
        command = [sys.executable, "-c", HOLDER, str(path), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline().strip()]
        while self.lines[-1] != "locked":
            self.lines.append(self.process.stdout.readline().strip())

    def __enter__(self) -> Holder:
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        for line in self.lines[:-1]:
            os.kill(int(line), signal.SIGKILL)


def run_in(path: Path, **options: Any) -> WorkDir:
    """Start and end a run in a directory."""
    work_dir = acquire(path, **options)
    work_dir.write_status(outcome="finished", run="me")
    work_dir.release()
    return work_dir


class TestClaim:
    def test_acquire_creates_the_directory(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path / "runs" / "x")

        assert (work_dir.path, work_dir.requested_path) == (tmp_path / "runs" / "x", None)
        assert work_dir.path.is_dir()
        work_dir.release()

    def test_directory_without_a_run_is_acquired_with_any_content(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        work_dir = acquire(tmp_path)
        work_dir.release()

        assert (work_dir.path, work_dir.requested_path) == (tmp_path, None)
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_new_run_uses_the_first_free_sibling(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        work_dirs = [run_in(path) for _ in range(3)]

        assert [work_dir.path.name for work_dir in work_dirs] == ["x", "x-2", "x-3"]
        assert [work_dir.requested_path for work_dir in work_dirs] == [None, path, path]

    def test_new_run_uses_a_sibling_of_the_current_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "x").mkdir()
        monkeypatch.chdir(tmp_path / "x")
        run_in(Path())

        assert run_in(Path()).path == tmp_path / "x-2"
        (tmp_path / "x" / "inside").mkdir()
        monkeypatch.chdir(tmp_path / "x" / "inside")
        assert run_in(Path("..")).path == tmp_path / "x-3"

    def test_resume_acquires_the_directory_with_its_content(self, tmp_path: Path) -> None:
        (run_in(tmp_path).directory("checkpoints") / "a.pth").write_text("a")
        work_dir = run_in(tmp_path, resume=True)

        assert (work_dir.path, work_dir.requested_path) == (tmp_path, None)
        assert (tmp_path / "checkpoints" / "a.pth").read_text() == "a"

    def test_overwrite_removes_only_the_files_of_the_run(self, tmp_path: Path) -> None:
        first = acquire(tmp_path)
        first.write_status(outcome="finished", run="me")
        first.write_config("a: 1", "me")
        for name in ("checkpoints/mine.pth", "checkpoints/other.pth", "checkpoints/user.pth"):
            write = lambda file: file.write(b"weights")  # noqa: E731
            atomic_write(tmp_path / name, write, *(() if "user" in name else (1, "me" if "mine" in name else "other")))
        for name in ("logs/run.jsonl", "visualization/images"):
            assert first.register_output(tmp_path / name)
        for name in ("logs/run.jsonl", "logs/user.txt", "visualization/images/1.png", "mine/file", "notes.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("text")
        first.release()
        work_dir = acquire(tmp_path, overwrite=True)

        names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
        kept = ["checkpoints/other.pth", "checkpoints/other.pth.json", "checkpoints/user.pth", "logs/user.txt"]
        assert names == [".hookbus.lock", *kept, "mine/file", "notes.txt"]
        assert [str(path.relative_to(tmp_path)) for path in work_dir.kept_files] == kept
        assert not (tmp_path / "visualization").exists()
        work_dir.release()

    def test_overwrite_removes_the_generations_of_the_run(self, tmp_path: Path) -> None:
        first = acquire(tmp_path)
        first.write_status(outcome="finished", run="me")
        for number, run in ((1, "me"), (2, "other")):
            (tmp_path / f"checkpoints/generation_{number}").mkdir(parents=True)
            write_manifest(tmp_path / f"checkpoints/generation_{number}", {}, generation=number, run=run)
        first.release()
        work_dir = acquire(tmp_path, overwrite=True)

        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["generation_2"]
        assert work_dir.kept_files == [tmp_path / "checkpoints/generation_2"]
        work_dir.release()

    def test_overwrite_without_a_run_removes_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        acquire(tmp_path, overwrite=True).release()

        assert (tmp_path / "logs").is_dir()

    def test_overwrite_does_not_follow_links(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "precious.pth").write_text("a")
        first = acquire(tmp_path / "x")
        first.write_status(outcome="finished", run="me")
        (tmp_path / "x" / "logs").symlink_to(tmp_path / "elsewhere")
        assert first.register_output(tmp_path / "x" / "logs" / "new.txt")
        (tmp_path / "elsewhere" / "new.txt").touch()
        (tmp_path / "x" / "checkpoints").symlink_to(tmp_path / "elsewhere")
        atomic_write(tmp_path / "elsewhere" / "last.pth", lambda file: file.write(b"a"), 1, "me")
        first.release()
        acquire(tmp_path / "x", overwrite=True).release()

        names = {path.name for path in (tmp_path / "elsewhere").iterdir()}
        assert names == {"precious.pth", "new.txt", "last.pth", "last.pth.json"}

    @pytest.mark.parametrize("option", ["resume", "overwrite"])
    def test_acquire_removes_only_the_temporary_files_of_a_killed_run(self, tmp_path: Path, option: str) -> None:
        first = acquire(tmp_path)
        first.write_status(outcome="running", run="me")
        checkpoints = first.directory("checkpoints")
        for directory in (tmp_path, checkpoints):
            (directory / make_temporary_name("me")).write_text("half")
            (directory / make_temporary_name("you")).write_text("half")
            (directory / ".tmp-notes").mkdir()
            (directory / ".tmp-x.pth").write_text("mine")
        first.release()
        acquire(tmp_path, **{option: True}).release()

        for directory in (tmp_path, checkpoints):
            left = sorted(path.name[:10] for path in directory.glob(".tmp*"))
            assert left == [".tmp-notes", ".tmp-x.pth", ".tmp-you-" + left[2][9:]]

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_acquire_removes_no_temporary_files_in_a_directory_without_a_run(
        self, tmp_path: Path, options: dict[str, bool]
    ) -> None:
        paths = [tmp_path / ".tmp-data.csv", tmp_path / make_temporary_name("me"), tmp_path / make_temporary_name("")]
        for path in paths:
            path.write_text("1,2,3")
        acquire(tmp_path, **options).release()

        assert all(path.read_text() == "1,2,3" for path in paths)

    @pytest.mark.parametrize("run", ["*", "../x", 3, None, ""])
    def test_status_without_a_run_id_is_refused(self, tmp_path: Path, run: object) -> None:
        (tmp_path / STATUS).write_text(json.dumps({"run": run, "outcome": "finished"}))
        (tmp_path / make_temporary_name("me")).write_text("mine")
        before = {path.name: path.read_text() for path in tmp_path.iterdir()}
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(WorkDirError, match=r"status.json was not written by a run: .*Move the file, or set"):
                acquire(tmp_path, **options)

        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_directory_that_cannot_be_written_raises_an_error(self, tmp_path: Path, options: dict[str, bool]) -> None:
        (tmp_path / "file").write_text("not a directory")

        with pytest.raises(
            WorkDirError, match="The work directory .*file/x cannot be written: Not a directory. Set an"
        ):
            acquire(tmp_path / "file" / "x", **options)
        with pytest.raises(WorkDirError, match="cannot be written: File exists. Set another work_dir."):
            acquire(tmp_path / "file", **options)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("a\0b", "(mkdir: )?embedded null .*"), ("x" * 300, "File name too long")],
        ids=["null", "long"],
    )
    def test_invalid_directory_name_raises_an_error(self, tmp_path: Path, name: str, reason: str) -> None:
        message = re.escape(repr(str(tmp_path / name)).strip("'"))
        with pytest.raises(WorkDirError, match=f"{message}'? cannot be written: {reason}. Set another work_dir."):
            acquire(tmp_path / name)
        for options in ({}, {"resume": True}):
            _, problem = preview(tmp_path / name, **options)
            assert "cannot be written: " in problem

    @pytest.mark.parametrize(
        "line",
        ['"../precious"', '"/precious"', '"logs/../../precious"', '".."', '"."', '""', '"a" []', '"logs\\u0000"'],
    )
    def test_modified_list_of_outputs_removes_nothing_outside(self, tmp_path: Path, line: str) -> None:
        (tmp_path / "precious").touch()
        run_in(tmp_path / "x")
        (tmp_path / "x" / ".made").write_text(f'{line}\n"logs"\n"torn')
        (tmp_path / "x" / "logs").mkdir()
        acquire(tmp_path / "x", overwrite=True).release()

        assert (tmp_path / "precious").exists()
        assert [path.name for path in (tmp_path / "x").iterdir()] == [".hookbus.lock"]


class TestHold:
    def test_locked_directory_raises_an_error_until_it_is_released(self, tmp_path: Path) -> None:
        release = lock_directory(tmp_path)
        with pytest.raises(
            WorkDirError, match=rf"The directory {tmp_path} is in use by an active run \(pid .*set another out_dir"
        ):
            lock_directory(tmp_path)
        release()
        lock_directory(tmp_path)()

    @pytest.mark.parametrize("locked", [False, True])
    def test_lock_directory_removes_temporary_files_of_its_run_and_the_overwritten_run(
        self, tmp_path: Path, locked: bool
    ) -> None:
        for run in ("me", "removed", "you", ""):
            (tmp_path / make_temporary_name(run)).write_text("half")
        (tmp_path / ".tmp-x.pth").symlink_to(tmp_path / "elsewhere")
        lock_directory(tmp_path, "me", ["removed"], locked=locked)()

        left = {path.name for path in tmp_path.glob(".tmp*")}
        assert len(left) == 3
        assert not any("me-" in name or "removed-" in name for name in left)


class TestLock:
    def test_second_run_does_not_use_the_directory_of_an_active_run(self, tmp_path: Path) -> None:
        with Holder(tmp_path / "x"):
            work_dir = acquire(tmp_path / "x")

            assert (work_dir.path.name, work_dir.requested_path) == ("x-2", tmp_path / "x")
            work_dir.release()

    @pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}])
    def test_resume_of_an_active_run_raises_an_error_with_its_process(
        self, tmp_path: Path, options: dict[str, bool]
    ) -> None:
        with Holder(tmp_path) as holder, pytest.raises(WorkDirError) as caught:
            acquire(tmp_path, **options)

        assert f"{tmp_path} is in use by an active run (pid {holder.process.pid} on " in str(caught.value)
        assert str(caught.value).endswith("Stop that run, or set another work_dir.")

    def test_lock_of_a_killed_process_is_released(self, tmp_path: Path) -> None:
        with Holder(tmp_path) as holder:
            holder.kill()
            work_dir = acquire(tmp_path, resume=True)

            assert (tmp_path / ".hookbus.lock").read_text().startswith(f"hookbus lock: pid {os.getpid()} on ")
            work_dir.release()

    def test_lock_of_a_killed_process_is_released_while_its_child_runs(self, tmp_path: Path) -> None:
        with Holder(tmp_path, "forks") as holder:
            holder.kill()
            os.kill(int(holder.lines[0]), 0)
            acquire(tmp_path, resume=True).release()

    def test_forked_child_cannot_release_the_lock_of_its_parent(self, tmp_path: Path) -> None:
        work_dir = acquire(tmp_path)
        assert run_in_fork(work_dir.release) == 0

        with pytest.raises(WorkDirError, match="in use by an active run"):
            acquire(tmp_path, resume=True)
        work_dir.release()
        work_dir.release()
        acquire(tmp_path, resume=True).release()

    def test_two_runs_in_one_process_use_separate_directories(self, tmp_path: Path) -> None:
        first, second = acquire(tmp_path / "x"), acquire(tmp_path / "x")

        assert (first.path.name, second.path.name) == ("x", "x-2")
        first.release(), second.release()


class TestFlockErrors:
    """`flock` on file systems that do not support it, or that fail."""

    @pytest.fixture
    def fails_with(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
        def install(code: int) -> None:
            def fail(*_: object) -> None:
                raise OSError(code, os.strerror(code))

            monkeypatch.setattr(fcntl, "flock", fail)

        return install

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
    def test_file_system_without_locks_is_used_without_a_lock(
        self,
        tmp_path: Path,
        fails_with: Callable[[int], None],
        caplog: pytest.LogCaptureFixture,
        code: int,
        options: dict[str, bool],
    ) -> None:
        run_in(tmp_path / "x")
        fails_with(code)
        work_dir = acquire(tmp_path / "x", **options)
        name = "x" if options else "x-2"

        assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"x", name})
        assert work_dir.path == tmp_path / name
        assert caplog.messages == [
            f"{work_dir.path}: the file system does not support locks ({os.strerror(code)}), so concurrent runs in "
            "this directory cannot be detected. Start only one run at a time in it."
        ]
        work_dir.release()

    def test_out_dir_without_locks_is_used_without_a_lock(
        self, tmp_path: Path, fails_with: Callable[[int], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        fails_with(errno.ENOLCK)
        lock_directory(tmp_path)()

        assert [message.split(":")[0] for message in caplog.messages] == [str(tmp_path)]

    @pytest.mark.parametrize("function", ["ftruncate", "pwrite"])
    def test_lock_file_that_cannot_be_written_is_locked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            release = lock_directory(tmp_path)
        with pytest.raises(WorkDirError, match="in use by an active run"):
            lock_directory(tmp_path)
        release()
        lock_directory(tmp_path)()

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_other_error_of_flock_is_raised_with_its_reason(
        self, tmp_path: Path, fails_with: Callable[[int], None], options: dict[str, bool]
    ) -> None:
        fails_with(errno.EIO)
        descriptors = len(os.listdir("/proc/self/fd"))
        message = rf"The work directory {tmp_path} cannot be locked: Input/output error. Set another work_dir."
        with pytest.raises(WorkDirError, match=message):
            acquire(tmp_path, **options)
        with pytest.raises(WorkDirError, match=r"cannot be locked: Input/output error. Set another out_dir."):
            lock_directory(tmp_path)

        assert len(os.listdir("/proc/self/fd")) == descriptors

    @pytest.mark.parametrize("code", [errno.EWOULDBLOCK, errno.EACCES])
    def test_file_system_that_reports_each_file_as_locked_is_refused_without_a_trace(
        self, tmp_path: Path, fails_with: Callable[[int], None], code: int
    ) -> None:
        fails_with(code)
        with pytest.raises(WorkDirError, match="reports a new file as locked by another process. Set another"):
            acquire(tmp_path / "x")
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "x").mkdir()
        with pytest.raises(WorkDirError, match="in use by an active run"):
            acquire(tmp_path / "x", resume=True)
        with pytest.raises(WorkDirError, match="x-2 cannot be locked: the file system reports a new file as locked"):
            acquire(tmp_path / "x")

        assert [path.name for path in tmp_path.iterdir()] == ["x"]


class TestSee:
    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    @pytest.mark.parametrize("runs", [0, 1, 2])
    def test_preview_returns_the_directory_of_acquire_and_creates_nothing(
        self, tmp_path: Path, runs: int, options: dict[str, bool]
    ) -> None:
        path = tmp_path / "a" / "x"
        for _ in range(runs):
            run_in(path)
        before = sorted(tmp_path.rglob("*"))
        previewed = preview(path, **options)
        assert sorted(tmp_path.rglob("*")) == before

        work_dir = acquire(path, **options)
        work_dir.release()
        assert previewed == (work_dir.path, "")

    def test_preview_returns_the_error_of_acquire(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a directory")
        path = tmp_path / "file" / "x"

        assert preview(path) == (
            path,
            f"The work directory {path} cannot be written: {tmp_path / 'file'} is not a directory. Set another "
            "work_dir.",
        )


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
