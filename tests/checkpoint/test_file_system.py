"""File systems without fsync of directories or hard links, and errors that are no missing feature."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoint.atomic_files import add_link, atomic_write
from hookbus.checkpoint.file_system import LINK_UNSUPPORTED, fsync, reset_warnings
from hookbus.checkpoint.sidecars import read_sidecar, verify
from hookbus_checkpoint import CheckpointHook
from tests import toys


@pytest.fixture(autouse=True)
def _reset_warnings() -> None:
    reset_warnings()


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that makes an operation of `os` fail, for all arguments or those that match."""

    def replace(operation: str, number: int, matches: Callable[[Any], bool] = lambda _: True) -> None:
        real = getattr(os, operation)

        def failing(argument: Any, *more: Any, **options: Any) -> Any:
            if matches(argument):
                raise OSError(number, os.strerror(number))
            return real(argument, *more, **options)

        monkeypatch.setattr(os, operation, failing)

    return replace


def is_directory(argument: Any) -> bool:
    """Return whether a path or a descriptor is a directory."""
    return Path(os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else argument).is_dir()


def commit(path: Path) -> None:
    atomic_write(path, lambda file: file.write(b"content"), generation=1)


@pytest.mark.parametrize(
    ("operation", "number"),
    [
        ("fsync", errno.EINVAL), ("fsync", errno.ENOTSUP), ("fsync", errno.ENOSYS), ("fsync", errno.EBADF),
        ("open", errno.EACCES), ("open", errno.EISDIR),
    ],
)  # fmt: skip
def test_file_is_written_without_fsync_of_directories_and_one_warning(
    tmp_path: Path, fail: Any, caplog: pytest.LogCaptureFixture, operation: str, number: int
) -> None:
    fail(operation, number, is_directory)
    commit(tmp_path / "a.pth")
    commit(tmp_path / "sub/b.pth")

    assert verify(tmp_path / "a.pth").generation == verify(tmp_path / "sub/b.pth").generation == 1
    assert caplog.messages == [
        f"{tmp_path}: the file system does not support fsync of directories ({os.strerror(number)}), so the last files "
        "may be lost in a power failure. Keep several checkpoints."
    ]


@pytest.mark.parametrize("number", sorted(LINK_UNSUPPORTED))
def test_link_is_copied_without_hard_links_and_one_warning(
    tmp_path: Path, fail: Any, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    commit(tmp_path / "a.pth")
    fail("link", number)
    add_link(tmp_path / "a.pth", tmp_path / "best.pth")
    add_link(tmp_path / "a.pth", tmp_path / "last.pth")

    assert (tmp_path / "last.pth").read_bytes() == (tmp_path / "best.pth").read_bytes() == b"content"
    assert verify(tmp_path / "last.pth").name == "last.pth"
    assert caplog.messages == [
        f"{tmp_path}: the file system does not support hard links ({os.strerror(number)}), so each further name of a "
        "checkpoint is a copy. Provide space for the copies."
    ]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_other_error_of_a_directory_fsync_is_raised_with_its_path(tmp_path: Path, fail: Any, number: int) -> None:
    fail("fsync", number, is_directory)

    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        commit(tmp_path / "a.pth")
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_other_error_of_a_link_is_raised(tmp_path: Path, fail: Any, number: int) -> None:
    commit(tmp_path / "a.pth")
    fail("link", number)

    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        add_link(tmp_path / "a.pth", tmp_path / "last.pth")
    assert caught.value.filename == str(tmp_path / "last.pth")
    assert read_sidecar(tmp_path / "last.pth") is None


def test_missing_file_is_not_mistaken_for_a_missing_feature(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fsync(tmp_path / "missing")


def test_each_run_reports_a_missing_feature_once(tmp_path: Path, fail: Any, caplog: pytest.LogCaptureFixture) -> None:
    fail("fsync", errno.EINVAL, is_directory)
    fail("link", errno.EPERM)
    for name in ("first", "second"):
        caplog.clear()
        hook = CheckpointHook(interval=1, save_best=False)
        toys.trainer(hook, epochs=2, work_dir=tmp_path / name).fit()

        reported = [message.partition("(")[0] for message in caplog.messages if "file system" in message]
        assert sorted(text.partition(": ")[2] for text in reported) == [
            "the file system does not support fsync of directories ", "the file system does not support hard links "
        ]  # fmt: skip
        assert verify(tmp_path / name / "checkpoints/last.pth")
