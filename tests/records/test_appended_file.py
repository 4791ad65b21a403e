"""A file that grows by whole pieces."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hookbus.records.appended_file import AppendedFile

FULL = """
import resource, sys
from pathlib import Path
from hookbus.records.appended_file import AppendedFile

path = Path(sys.argv[1])
file = AppendedFile(path)
file.put(b"first\\n")
file.flush()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
file.put(b"second\\n")
file.put(b"third\\n")
try:
    file.flush()
except OSError:
    print(path.read_bytes().decode(), end="")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
file.put(b"again\\n")
file.close()
"""


def test_a_piece_is_in_the_file_after_the_next_flush(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "new" / "file")
    file.put(b"a")
    assert file.path.read_bytes() == b""
    file.flush()
    file.put(b"b")
    file.put(b"c")
    file.close()
    file.close()
    assert file.path.read_bytes() == b"abc"


def test_what_is_forgotten_is_not_written(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "file")
    file.put(b"a")
    file.forget()
    file.close()
    assert file.path.read_bytes() == b""


def test_a_torn_line_is_none(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "file")
    assert file.lines() == []
    for piece in (b"torn", b", and whole\n", "größe\r\n".encode(), b"\n", b"to"):
        file.put(piece)
        file.flush()
    assert file.lines() == ["torn, and whole\n", "größe\r\n", "\n"]
    file.close()


def test_other_content_takes_the_place_of_all_that_is_there_and_writing_goes_on_behind_it(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "file")
    file.put(b"abc")
    file.flush()
    file.put(b"d")
    file.replace(b"xy")
    assert file.path.read_bytes() == b"xy"
    file.close()
    assert file.path.read_bytes() == b"xyd"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_was_removed_is_told(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "file")
    file.put(b"a")
    file.path.unlink()
    with pytest.raises(FileNotFoundError, match="it was removed while it was written"):
        file.flush()
    file.close()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "file")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "first\n"  # 4 bytes of the second would have had room
    assert (tmp_path / "file").read_bytes() == b"first\nagain\n"
