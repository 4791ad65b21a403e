"""Final `status.json` of a run on a disk that is full or fails.

A file that is replaced atomically needs space. If there is none, the file is overwritten in place, with as much of the
status as fits, and removed if this fails as well: it never states that a run is running that has ended.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookbus._run.status import StatusFile
from hookbus._utils.files import get_reason
from hookbus.checkpoint.atomic_files import format_json
from hookbus.checkpoint.file_system import fsync
from hookbus.errors import format_path

ESSENTIAL = (
    "run", "outcome", "exit_code", "mode", "epochs_done", "iters_done", "steps_done", "checkpoint", "outputs",
    "updated", "pid", "host",
)  # fmt: skip
"""Keys of a status that is too long to be overwritten in place completely."""
MINIMAL = ("run", "outcome", "exit_code")


def replace_status(path: Path, status: Mapping[str, Any], error: OSError) -> str:
    """Replace the status of a running run without additional space, after it could not be written.

    Args:
        path: Path of `status.json`.
        status: Final status.
        error: Error of the write.

    Returns:
        Message that states what happened.
    """
    shown = f"{format_path(path)} could not be written: {get_reason(error)}."
    outcome = f"The outcome of the run is {status['outcome']}."
    earlier = StatusFile.read(path.parent)
    if earlier.run != status["run"]:
        return f"{shown} {outcome}"
    with suppress(OSError):
        keys = _overwrite(path, status)
        return f"{shown} {outcome} The previous status was overwritten" + (
            "." if keys == set(status) else ", without further details."
        )
    is_intact = StatusFile.read(path.parent).run == status["run"]
    if is_intact and earlier.fields.get("outcome") != "running":
        return f"{shown} {outcome} The file still records an earlier state."
    with suppress(OSError):
        path.unlink()
        with suppress(OSError):
            fsync(path.parent)
        return f"{shown} {outcome} The file was removed, because it recorded the run as running."
    return f"{shown} {outcome} The file still records an earlier state."


def _overwrite(path: Path, status: Mapping[str, Any]) -> set[str]:
    """Overwrite a file with a status of at most its size, and return the keys that were written.

    Raises:
        OSError: If the file cannot be overwritten.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
            raise OSError(errno.EINVAL, "not a file of the run", str(path))
        texts = ((keys, text) for keys, text in _iter_texts(status) if len(text) <= state.st_size)
        keys, text = next(texts, (set(), b""))
        if not text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        _write_all(descriptor, text.ljust(state.st_size))
        with suppress(OSError):
            os.ftruncate(descriptor, len(text))  # removes trailing spaces, which are valid JSON
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return keys


def _iter_texts(status: Mapping[str, Any]) -> Iterator[tuple[set[str], bytes]]:
    """Yield the keys and the text of a status, shorter each time."""
    for keys in (tuple(status), ESSENTIAL, MINIMAL):
        part = {key: status[key] for key in keys if key in status}
        for indent in (2, None):
            yield set(part), format_json(part, indent).encode()


def _write_all(descriptor: int, data: bytes) -> None:
    """Write bytes to the beginning of a file that is at least as long."""
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], written)
    except OSError as error:
        # The limit of the file size (RLIMIT_FSIZE) applies to each write, also within the file, but not to a mapping.
        if error.errno != errno.EFBIG:
            raise
        with mmap.mmap(descriptor, len(data)) as mapped:
            mapped[:] = data
            mapped.flush()
