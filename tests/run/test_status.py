"""`status.json` of a work directory."""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import json
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import HookBus
from hookbus._run.acquisition import acquire
from hookbus._run.status import STATUS, StatusFile, parse_status, read_status
from hookbus.checkpoint.sidecars import list_newest_first, verify
from hookbus.errors import HookbusError
from tests import toys

VALID: dict[str, Any] = {"run": "a1", "outcome": "finished"}


def write(directory: Path, content: object) -> StatusFile:
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / STATUS).write_text(text)
    return StatusFile.read(directory)


def test_status_of_a_run_is_read(tmp_path: Path) -> None:
    status = write(tmp_path, {**VALID, "checkpoint": None, "outputs": ["logs"], "overwritten": ["b2"], "new": [1]})

    assert (status.run, status.problem, status.fields["new"]) == ("a1", "", [1])
    assert read_status(tmp_path) == status.fields


def test_missing_status_has_no_problem(tmp_path: Path) -> None:
    assert StatusFile.read(tmp_path) == StatusFile()
    assert StatusFile.read(tmp_path / "a\0b") == StatusFile()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "mine",
        "[]",
        "[" * 100_000,
        {},
        {"run": "a1"},
        {"outcome": "finished"},
        {**VALID, "run": ""},
        {**VALID, "run": "../a"},
        {**VALID, "run": 3},
        {**VALID, "checkpoint": 3},
        {**VALID, "outputs": "logs"},
        {**VALID, "outputs": [3]},
        {**VALID, "overwritten": ["../a"]},
        {**VALID, "overwritten": "a1"},
    ],
)
def test_file_with_another_content_is_not_a_status(tmp_path: Path, content: object) -> None:
    status = write(tmp_path, content)

    assert status.problem
    assert (status.fields, status.run, read_status(tmp_path)) == ({}, "", {})


def test_fifo_and_directory_are_not_a_status(tmp_path: Path) -> None:
    (tmp_path / "a" / STATUS).mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / STATUS)

    assert [StatusFile.read(tmp_path / name).problem for name in "ab"] == ["is a directory", "not a regular file"]


def test_removed_run_is_not_reported(tmp_path: Path) -> None:
    status = write(tmp_path, {**VALID, "outcome": "removed"})

    assert (status.is_removed, status.run, read_status(tmp_path)) == (True, "a1", {})


@pytest.mark.parametrize(
    ("content", "is_damaged"),
    [
        ("", True),
        ("\0" * 600, True),
        ("{", True),
        ('{\n  "run": "', True),
        ('{\n  "run": "a1",\n  "outc\x00', True),
        ("mine", False),
        ('{"accuracy": 0.9}', False),
    ],
)
def test_invalid_file_is_damaged_if_it_may_be_that_of_a_run(tmp_path: Path, content: str, is_damaged: bool) -> None:
    status = write(tmp_path, content)

    assert (status.is_damaged(["a1"]), status.is_damaged([])) == (is_damaged, False)


GOLDEN = Path(__file__).parents[1] / "golden" / "run-0.1.0" / "status.json"


def test_status_of_a_run_is_returned_with_all_keys() -> None:
    assert parse_status(GOLDEN.read_bytes()) == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "../x"),
        ("run", None),
        ("outcome", 3),
        ("checkpoint", ["a"]),
        ("checkpoint", "\ud800"),
        ("epochs_done", -1),
        ("iters_done", 10**30),
        ("steps_done", True),
        ("best", []),
        ("outputs", "logs"),
        ("metrics", {"val/loss": "low"}),
    ],
)
def test_invalid_value_is_reported_with_its_key(key: str, value: Any) -> None:
    status = json.loads(GOLDEN.read_text())
    with pytest.raises(ValueError, match=key if value != "\ud800" else "surrogates"):
        parse_status(json.dumps({**status, key: value}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 100_000])
def test_other_content_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"invalid JSON|content|outcome"):
        parse_status(data)


OPERATIONS = ("fsync", "replace", "rename", "link", "unlink", "mkdir", "pwrite", "ftruncate")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EFBIG]


@contextmanager
def fail(directory: Path, at: int, error: BaseException, *, lasting: bool) -> Iterator[list[str]]:
    """Let the write operation number `at` below a directory fail, and all later ones if `lasting`.

    Yields:
        The operations, in the order of their execution.
    """
    operations: list[str] = []

    def check(name: str, path: Any) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path).absolute()
        if directory not in (path, *path.parents):
            return
        operations.append(name)
        if len(operations) == at + 1 or (lasting and len(operations) > at):
            raise error

    def wrap(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def checked(path: Any, *arguments: Any, **options: Any) -> Any:
            check(name, path)
            return operation(path, *arguments, **options)

        return checked

    def open_checked(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and set(mode) & set("wax+"):
            check("open", path)
        return real_open(path, mode, *arguments, **options)

    def os_open_checked(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            check("open", path)
        return real_os_open(path, flags, *arguments, **options)

    real_open, real_os_open = builtins.open, os.open
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrap(name, getattr(os, name)))
        patch.setattr(builtins, "open", open_checked)
        patch.setattr(io, "open", open_checked)
        patch.setattr(os, "open", os_open_checked)
        yield operations


def train(work_dir: Path, *, resume: str = "never", iterations: int = 3) -> Any:
    training = toys.trainer(toys.Saver(), iterations=iterations, work_dir=work_dir, resume=resume, config={"a": 1})
    return training.fit().model.state_dict()


class TestEveryOperation:
    @pytest.mark.slow
    @pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
    @pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 5])
    def test_error_of_any_write_ends_the_run_with_a_consistent_status(
        self, tmp_path: Path, number: int, lasting: bool, step: int
    ) -> None:
        expected = train(tmp_path / "expected", iterations=4)
        # From a random operation on, so that repeated tests fail at all of them.
        for at in itertools.count(random.randrange(step), step):
            work_dir = tmp_path / f"run-{at}"
            outcome = "finished"
            with fail(work_dir, at, OSError(number, os.strerror(number)), lasting=lasting) as operations:
                try:
                    train(work_dir)
                except HookbusError:
                    outcome = "failed"
                except OSError:  # a save of the toy hook, which raises it
                    outcome = "failed"
            if len(operations) <= at:
                break
            # Nothing at all can be changed if each operation fails; the status of a running process is then left.
            status = read_status(work_dir)
            assert not status or status["outcome"] == outcome or (lasting and status["outcome"] == "running"), at
            for path in list_newest_first(work_dir / "checkpoints"):
                verify(path)
            actual = train(work_dir, resume="auto", iterations=4)
            assert all(torch.equal(actual[key], expected[key]) for key in expected), at
        assert at > 20


class TestFullDisk:
    @pytest.fixture
    def training(self, tmp_path: Path) -> Any:
        return toys.trainer(toys.Saver(), iterations=3, work_dir=tmp_path / "run", config={"a": 1})

    @pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
    def test_status_is_written_in_place_if_no_file_can_be_created(
        self, training: Any, tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fill_disk() -> None:
            real = builtins.open

            def open_full(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
                if "w" in mode:
                    raise OSError(number, os.strerror(number), str(path))
                return real(path, mode, *arguments, **options)

            patch.setattr(builtins, "open", open_full)

        training.bus.on("cleanup", name="full")(fill_disk)
        with pytest.MonkeyPatch.context() as patch:
            run = training.fit()
        status = read_status(tmp_path / "run")

        assert (run.outcome, status["outcome"], status["exit_code"]) == ("finished", "finished", 0)
        assert (status["run"], status["iters_done"]) == (run.id, 3)
        report, message = caplog.messages
        assert report.startswith(f"{tmp_path / 'run' / 'report.html'} cannot be written: ")
        assert message.startswith(f"{tmp_path / 'run' / STATUS} could not be written: {os.strerror(number)}")
        assert message.endswith("The previous status was overwritten.")

    def test_limit_of_the_file_size_does_not_prevent_the_status(self, training: Any, tmp_path: Path) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        training.bus.on("cleanup", name="limit")(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1])))
        try:
            run = training.fit()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert (run.outcome, read_status(tmp_path / "run")["outcome"]) == ("finished", "finished")

    def test_long_status_is_shortened_to_the_available_size(
        self, training: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit(run: Any) -> None:
            run.metadata.data["notes"] = "x" * 5000  # an assignment would already write the long file
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))

        training.bus.on("cleanup", name="limit")(limit)
        try:
            training.fit()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        status = json.loads((tmp_path / "run" / STATUS).read_text())

        assert (status["outcome"], status["iters_done"], "about" in status) == ("finished", 3, False)
        assert caplog.messages[-1].endswith("The previous status was overwritten, without further details.")

    def test_status_that_can_only_be_removed_is_removed(
        self, training: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise FULL

        with pytest.MonkeyPatch.context() as patch:

            def fill_disk() -> None:
                for name in ("pwrite", "replace"):
                    patch.setattr(os, name, refuse)

            training.bus.on("cleanup", name="full")(fill_disk)
            assert training.fit().outcome == "finished"

        assert not (tmp_path / "run" / STATUS).exists()
        assert caplog.messages[-1].endswith("The file was removed, because it recorded the run as running.")
        resumed = toys.trainer(toys.Saver(), iterations=4, work_dir=tmp_path / "run", resume="auto").fit()
        assert (resumed.id, resumed.iters_done) == (training.bus.current.id, 4)

    def test_deleted_work_dir_does_not_fail_the_run(self, training: Any, tmp_path: Path) -> None:
        training.bus.on("cleanup", name="delete")(lambda: (tmp_path / "run").rename(tmp_path / "moved"))
        assert training.fit().outcome == "finished"


class TestInterruptedEnd:
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError(), GeneratorExit()], ids=repr)
    def test_exception_within_any_operation_of_the_end_is_the_outcome(
        self, tmp_path: Path, error: BaseException
    ) -> None:
        for at in itertools.count():
            bus, work_dir = HookBus(), tmp_path / f"run-{at}"
            raised: list[BaseException] = []
            manager = bus.run(work_dir=work_dir)
            run = manager.__enter__()
            with fail(work_dir, at, error, lasting=False) as operations:
                try:
                    manager.__exit__(None, None, None)
                except BaseException as caught:
                    raised.append(caught)
            status = read_status(work_dir)
            assert (status["outcome"], run.is_running) == (run.outcome, False)
            acquire(work_dir, resume=True).release()
            if len(operations) <= at:
                assert (raised, run.outcome) == ([], "finished")
                break
            if raised:
                assert raised == [error]
                assert run.outcome == ("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        assert at > 3

    def test_ctrl_c_during_the_final_write_is_raised_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bus, real = HookBus(), os.replace

        def interrupt(*arguments: Any) -> None:
            if read_status(tmp_path).get("outcome") == "running":
                signal.raise_signal(signal.SIGINT)
            real(*arguments)

        with pytest.raises(KeyboardInterrupt), bus.run(work_dir=tmp_path):
            monkeypatch.setattr(os, "replace", interrupt)
        assert (bus.current.outcome, read_status(tmp_path)["outcome"]) == ("interrupted", "interrupted")
        acquire(tmp_path, resume=True).release()


def read_metadata(work_dir: Path) -> object:
    return json.loads((work_dir / "status.json").read_text())["about"]


def test_assigned_metadata_is_written_at_once(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        assert read_metadata(tmp_path / "run") == {}
        run.metadata["host"] = "a"
        assert read_metadata(tmp_path / "run") == {"host": "a"}
        run.metadata.update({"host": "b"}, gpus=2)
        assert read_metadata(tmp_path / "run") == {"host": "b", "gpus": 2}
        del run.metadata["host"]
        assert read_metadata(tmp_path / "run") == {"gpus": 2}


def test_update_writes_the_file_once(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        writes: list[None] = []
        run.metadata.write = lambda: writes.append(None)
        run.metadata.update(a=1, b=2)
        assert len(writes) == 1


def test_secrets_in_metadata_are_redacted_in_the_file(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        run.metadata["password"] = "hunter2"
        assert run.metadata["password"] == "hunter2"
    assert "hunter2" not in (tmp_path / "run" / "status.json").read_text()


def test_metadata_of_a_run_without_files_is_kept_in_memory() -> None:
    with HookBus().run() as run:
        run.metadata["host"] = "a"
        assert dict(run.metadata) == {"host": "a"}
