"""Tests of the append-only file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hookbus.writers.append_only_file import AppendOnlyFile
from tests import windows

WRITE_TO_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from hookbus.writers.append_only_file import AppendOnlyFile

path = Path(sys.argv[1])
file = AppendOnlyFile(path)
file.append(b"first\\n")
file.flush()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
file.append(b"second\\n")
file.append(b"third\\n")
try:
    file.flush()
except OSError:
    print(path.read_bytes().decode(), end="")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
file.append(b"again\\n")
file.close()
"""


def test_data_is_written_by_the_next_flush(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "new" / "file")
    file.append(b"a")
    assert file.path.read_bytes() == b""
    file.flush()
    file.append(b"b")
    file.append(b"c")
    file.close()
    file.close()
    assert file.path.read_bytes() == b"abc"


def test_discarded_data_is_not_written(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    file.append(b"a")
    file.discard_pending()
    file.close()
    assert file.path.read_bytes() == b""


def test_incomplete_last_line_is_omitted(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    assert file.read_lines() == []
    for data in (b"first", b", complete\n", "größe\r\n".encode(), b"\n", b"in"):
        file.append(data)
        file.flush()
    assert file.read_lines() == ["first, complete\n", "größe\r\n", "\n"]
    file.close()


def test_replaced_content_is_followed_by_later_data(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    file.append(b"abc")
    file.flush()
    file.append(b"d")
    file.replace(b"xy")
    assert file.path.read_bytes() == b"xy"
    file.close()
    assert file.path.read_bytes() == b"xyd"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_file_is_closed_while_it_is_replaced_as_windows_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", windows.refuse_if(windows.is_open, os.replace, count=2))
    file = AppendOnlyFile(tmp_path / "file")
    file.replace(b"xy")
    file.append(b"z")
    file.close()

    assert file.path.read_bytes() == b"xyz"


def test_file_that_cannot_be_replaced_is_open_and_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    file.append(b"abc")
    file.flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", windows.refuse_if(lambda path: True, os.replace, count=1))
        with pytest.raises(PermissionError):
            file.replace(b"xy")
    file.append(b"d")
    file.close()

    assert file.path.read_bytes() == b"abcd"


def test_flush_to_a_deleted_file_raises(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    file.append(b"a")
    file.path.unlink()
    with pytest.raises(FileNotFoundError, match="the file was deleted while it was open"):
        file.flush()
    file.close()


def test_full_disk_leaves_the_file_unchanged(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", WRITE_TO_A_FULL_DISK, str(tmp_path / "file")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "first\n"  # the limit leaves space for 4 bytes of the second line
    assert (tmp_path / "file").read_bytes() == b"first\nagain\n"


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("content")
    (tmp_path / "link.txt").symlink_to(tmp_path / "other.txt")

    with pytest.raises(OSError, match="symbolic link"):
        AppendOnlyFile(tmp_path / "link.txt")
    assert (tmp_path / "other.txt").read_text() == "content"


def test_fifo_is_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match=r"fifo|not a regular file"):
        AppendOnlyFile(tmp_path / "fifo")
