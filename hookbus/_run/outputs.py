"""List of the files and directories that runs have created in a work directory: `.made`.

Each line is a JSON string with a path relative to the directory, written and fsynced before the path is created. The
same paths are stored in `status.json`; an output is listed if it is in either file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from hookbus._run.directory_lock import LOCK, describe_foreign_file
from hookbus._utils.files import get_reason, read_regular_file
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.checkpoint.file_system import fsync, fsync_file

OUTPUTS = ".made"
HEADER = '"hookbus: files that runs have created in this directory"'
"""First line. A list of an earlier version begins with an output."""

MAX_SIZE = 16 << 20


def read_outputs(directory: Path) -> set[str]:
    """Return the outputs that the list in a work directory contains. Invalid lines are ignored."""
    try:
        content = read_regular_file(directory / OUTPUTS, MAX_SIZE)
    except OSError:
        return set()
    lines = content.decode(errors="replace").split("\n")
    return parse_names(name for line in lines if line != HEADER and (name := _parse_line(line)))


def parse_names(names: Iterable[str]) -> set[str]:
    """Return the names that denote a path inside a work directory."""
    # Checked for every list: the file may have been edited, and `overwrite` removes what it lists.
    return {name for name in names if _is_inside(name)}


def find_list_problem(directory: Path, *, contains_run: bool) -> str:
    """Return the error of a foreign file in the place of the list; "" if the list can be written.

    Args:
        directory: Work directory.
        contains_run: Whether other files in the directory were written by a run, so that a list without a header may
            be that of a run.
    """
    path = directory / OUTPUTS
    try:
        content = read_regular_file(path, MAX_SIZE)
    except OSError as error:
        return describe_foreign_file(path, get_reason(error)) if os.path.lexists(path) else ""
    # A failure of the disk leaves zeros, or truncates the last line.
    lines = [line for line in content.replace(b"\0", b"").split(b"\n") if line]
    is_list = all(line.startswith(b'"') for line in lines)
    if is_list and (contains_run or content.startswith(HEADER.encode())):
        return ""
    return describe_foreign_file(path, "it is not a list of outputs")


def append_output(directory: Path, name: str) -> None:
    """Append an output to the list, durably.

    Args:
        directory: Work directory. Multiple ranks may append at the same time.
        name: Path relative to the directory.

    Raises:
        OSError: If the list cannot be written, or is not a regular file.
    """
    path = directory / OUTPUTS
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        # A line that was truncated by a full disk must not merge with this one.
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        start = "\n" if is_torn else f"{HEADER}\n" if size == 0 else ""
        _write_all(descriptor, f"{start}{json.dumps(name)}\n".encode())
        fsync_file(descriptor, path)
    finally:
        os.close(descriptor)
    if size == 0:
        fsync(directory)


def write_outputs(directory: Path, names: Iterable[str], run: str) -> None:
    """Replace the list, such as one with a truncated line.

    Args:
        directory: Work directory.
        names: All outputs.
        run: ID of the run that uses the directory.
    """
    text = "".join(f"{line}\n" for line in (HEADER, *map(json.dumps, sorted(names))))
    with suppress(OSError):  # on a full disk the former list is kept, and `append_output` completes its last line
        atomic_write(directory / OUTPUTS, lambda file: file.write(text.encode()), run=run)


def is_replaceable(path: Path) -> bool:
    """Return whether a listed output is missing, a regular file or a directory, rather than a link of the user."""
    return not os.path.lexists(path) or (not path.is_symlink() and (path.is_file() or path.is_dir()))


def remove_output(directory: Path, name: str) -> bool:
    """Remove an output; a directory is removed with its content.

    Args:
        directory: Work directory.
        name: Listed path.

    Returns:
        False if the path is foreign and kept: a link or special file in the place of the output, or a path that leads
        through a link out of the directory.
    """
    path = directory / name
    if not os.path.lexists(path):
        return True
    # The outputs of a linked directory are in the directory of the user that the link refers to.
    if not is_replaceable(path) or not path.parent.resolve().is_relative_to(directory.resolve()):
        return False
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return True


def _parse_line(line: str) -> str:
    """Return the path in a line; "" if the line is invalid."""
    try:
        name = json.loads(line) if line.startswith('"') else ""
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != LOCK and "\0" not in name and not name.startswith("/") and ".." not in parts


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
