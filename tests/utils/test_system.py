"""Tests of the functions that some systems lack, and of their fallbacks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookbus._utils import system


@pytest.fixture
def descriptor(tmp_path: Path) -> Any:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"0123456789")
    yield descriptor
    os.close(descriptor)


class MandatoryLocks:
    """`msvcrt.locking`, with the locks of this system."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.locked: list[tuple[int, int]] = []

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        assert mode == self.LK_NBLCK
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None
        self.locked.append((os.lseek(descriptor, 0, os.SEEK_CUR), size))


@pytest.mark.parametrize("has_pread", [True, False])
def test_bytes_are_read_and_written_at_a_position(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, has_pread: bool
) -> None:
    if not has_pread:
        monkeypatch.delattr(os, "pread")
        monkeypatch.delattr(os, "pwrite")

    assert system.write_at(descriptor, b"ab", 3) == 2
    assert system.read_at(descriptor, 4, 2) == b"2ab5"
    assert system.read_at(descriptor, 100, 0) == b"012ab56789"


def test_link_is_refused_on_a_system_without_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NO_FOLLOW", 0)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)) as raised:
        system.open_descriptor(tmp_path / "link", os.O_RDONLY)
    assert raised.value.errno == errno.ELOOP
    os.close(system.open_descriptor(tmp_path / "link", os.O_RDONLY, follow=True))


def test_byte_behind_the_content_is_locked_on_windows(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = MandatoryLocks()
    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(system, "msvcrt", windows)
    other = os.open(tmp_path / "file", os.O_RDWR)

    system.lock_file(descriptor)
    with pytest.raises(PermissionError) as raised:
        system.lock_file(other)
    os.close(other)
    assert raised.value.errno == errno.EACCES
    assert windows.locked == [(1 << 30, 1)]


def test_lock_of_a_system_without_locks_is_an_error(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "fcntl", None)

    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)) as raised:
        system.lock_file(descriptor)
    assert raised.value.errno == errno.ENOSYS


@pytest.mark.parametrize(("refused", "calls"), [(False, ["F_FULLFSYNC"]), (True, ["F_FULLFSYNC", "fsync"])])
def test_macos_flushes_the_cache_of_the_device_if_possible(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, refused: bool, calls: list[str]
) -> None:
    made = []

    def control(_descriptor: int, command: str) -> None:
        made.append(command)
        if refused:
            raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(system, "fcntl", SimpleNamespace(F_FULLFSYNC="F_FULLFSYNC", fcntl=control))
    monkeypatch.setattr(os, "fsync", lambda _: made.append("fsync"))
    system.sync_file(descriptor)

    assert made == calls


@pytest.mark.parametrize("code", [5, 32])
def test_file_in_use_is_replaced_when_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "new").write_text("new")
    delays: list[float] = []
    monkeypatch.setattr(system.time, "sleep", delays.append)
    monkeypatch.setattr(os, "replace", refuse(2, code, os.replace))
    system.replace_file(tmp_path / "new", tmp_path / "old")

    assert (tmp_path / "old").read_text() == "new"
    assert delays == [0.01, 0.03]


def test_file_that_remains_in_use_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr(system.time, "sleep", delays.append)
    monkeypatch.setattr(os, "replace", refuse(10, 32, os.replace))

    with pytest.raises(PermissionError):
        system.replace_file(tmp_path / "new", tmp_path / "old")
    assert delays == [0.01, 0.03, 0.1, 0.3, 0.6]


def test_permission_that_is_missing_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr(system.time, "sleep", delays.append)
    monkeypatch.setattr(os, "replace", refuse(1, None, os.replace))

    with pytest.raises(PermissionError):
        system.replace_file(tmp_path / "new", tmp_path / "old")
    assert delays == []


def test_limit_of_the_file_size_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "resource", None)
    with pytest.raises(OSError, match="Windows has no limit of the file size"):
        system.limit_file_size(100)


def refuse(count: int, code: int | None, replace: Any) -> Any:
    """Return a function that refuses calls, with an error code of Windows, before it calls another function."""
    calls: list[object] = []

    def call(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) <= count:
            error = PermissionError(errno.EACCES, "in use")
            if code is not None:
                error.winerror = code  # type: ignore[attr-defined]
            raise error
        replace(source, target)

    return call
