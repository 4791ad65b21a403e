"""`status.json`: the state of the training run in a work directory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus._utils.files import get_reason, parse_json, read_regular_file
from hookbus._utils.schema import any_value, integer, list_of, mapping_of, nullable, number, record, string
from hookbus._utils.system import open_descriptor, sync_file, write_at
from hookbus.checkpoint.atomic_files import format_json
from hookbus.checkpoint.file_system import fsync
from hookbus.errors import format_path

STATUS = "status.json"
CHECKPOINT = "checkpoint"
"""Key of `status.json`: path of the newest checkpoint that the run has committed; null before the first one.

The path is relative to the work directory if the file is inside it. Earlier versions did not write the key.
"""

OUTPUTS_KEY = "outputs"
"""Key of `status.json`: the registered outputs, also if the list of outputs is lost."""

ELSEWHERE = "directories"
"""Key of `status.json`: absolute paths of the directories outside the work directory that the run has locked.

A killed process may have left partial files in them, also if a later run has another `out_dir`.
"""

OVERWRITTEN = "overwritten"
"""Key of `status.json`: IDs of overwritten runs whose files in other directories may not have been removed yet."""

DIRECTORY = "directory"
"""Key of `status.json`: absolute path of the work directory when the file was written, which identifies a copy."""

REMOVED = "removed"
"""Outcome of a run whose removal has begun; the next run in the directory completes it."""

BEGINNING = b'{\n  "run": "'

ESSENTIAL = (
    "run", "outcome", "exit_code", "mode", "epochs_done", "iters_done", "steps_done", CHECKPOINT, OUTPUTS_KEY,
    "updated", "pid", "host",
)  # fmt: skip
"""Keys of a status that is too long to be overwritten in place completely."""
MINIMAL = ("run", "outcome", "exit_code")

MAX_STATUS_SIZE = 16 << 20
"""Maximum size in bytes: the metrics and the outputs of a run are listed in the file."""

_check_status = record(
    {"outcome": string()},
    {
        # A run that was started without an ID has an empty one.
        "run": string("[0-9A-Za-z]*", 64),
        CHECKPOINT: nullable(string()),
        "mode": string(),
        "exit_code": nullable(integer()),
        "reasons": list_of(string(maximum=MAX_STATUS_SIZE)),
        "error": nullable(string(maximum=MAX_STATUS_SIZE)),
        "epochs_done": integer(),
        "iters_done": integer(),
        "steps_done": integer(),
        "best": mapping_of(record({"value": nullable(number())})),
        "metrics": mapping_of(nullable(number())),
        OUTPUTS_KEY: list_of(string()),
        ELSEWHERE: list_of(string()),
        OVERWRITTEN: list_of(string("[0-9A-Za-z]+")),
        DIRECTORY: string(),
        "about": mapping_of(any_value),
    },
)


@dataclass(frozen=True)
class StatusFile:
    """Content of `status.json`.

    Attributes:
        fields: Content; {} if the file is missing, or was not written by a run.
        problem: Reason why an existing file is not the status of a run; "" if it is, or does not exist.
        content: Bytes of an invalid file, as far as they could be read.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    content: bytes | None = None

    @classmethod
    def read(cls, directory: Path) -> StatusFile:
        """Read the file in a work directory."""
        path = directory / STATUS
        try:
            content = read_regular_file(path, MAX_STATUS_SIZE)
        except OSError as error:
            return cls(problem=get_reason(error)) if os.path.lexists(path) else cls()
        try:
            fields = parse_status(content)
        except ValueError as error:
            return cls(problem=str(error), content=content)
        return cls(fields) if fields.get("run") else cls(problem="it does not contain the ID of a run", content=content)

    @property
    def run(self) -> str:
        """ID of the run; "" if there is none."""
        return str(self.fields.get("run", ""))

    @property
    def is_removed(self) -> bool:
        """Whether the removal of the run has begun."""
        return self.fields.get("outcome") == REMOVED

    def is_damaged(self, runs: Collection[str]) -> bool:
        """Return whether an invalid file is nevertheless that of a run in the directory."""
        if self.content is None or not runs:
            return False
        # After a failure of the disk, the file is empty or consists of zeros, or parts of it are lost.
        is_start = BEGINNING.startswith(self.content.rstrip(b"\0"))
        return is_start or any(run.encode() in self.content for run in runs)


def read_status(path: Path) -> dict[str, Any]:
    """Return the content of `status.json` in a work directory; {} if it contains no run, or its removal has begun."""
    status = StatusFile.read(path)
    return {} if status.is_removed else dict(status.fields)


class Metadata(UserDict[str, Any]):
    """Values by name. Each change writes `status.json`, so that the file describes a run that is killed later.

    Attributes:
        write: Function that writes the file, while the run has one. Called after each change, and once per call of
            `update`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.write: Callable[[], object] = lambda: None

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.write()

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.write()

    def update(self, *values: Any, **more: Any) -> None:
        """Set several values, and write the file once."""
        self.data.update(*values, **more)
        self.write()


def parse_status(data: bytes) -> dict[str, Any]:
    """Return the content of `status.json`, validated. Keys that this version does not know are kept.

    Raises:
        ValueError: If it is not valid JSON, or a value is invalid; the message contains the key.
    """
    status = parse_json(data)
    _check_status(status, "")
    return dict(status)


def replace_status(path: Path, status: Mapping[str, Any], error: OSError) -> str:
    """Replace the status of a running run without additional space, after it could not be written.

    Returns:
        Message that states what happened.
    """
    shown = (
        f"{format_path(path)} could not be written: {get_reason(error)}. The outcome of the run is {status['outcome']}."
    )
    earlier = StatusFile.read(path.parent)
    if earlier.run != status["run"]:
        return shown
    with suppress(OSError):
        is_complete = _overwrite(path, status) == set(status)
        return f"{shown} The previous status was overwritten{'' if is_complete else ', without further details'}."
    is_intact = StatusFile.read(path.parent).run == status["run"]
    if not is_intact or earlier.fields.get("outcome") == "running":
        with suppress(OSError):
            path.unlink()
            with suppress(OSError):
                fsync(path.parent)
            return f"{shown} The file was removed, because it recorded the run as running."
    return f"{shown} The file still records an earlier state."


def _overwrite(path: Path, status: Mapping[str, Any]) -> set[str]:
    """Overwrite a file with a status of at most its size, and return the keys that were written.

    Raises:
        OSError: If the file cannot be overwritten.
    """
    descriptor = open_descriptor(path, os.O_RDWR)
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
            sync_file(descriptor)
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
            written += write_at(descriptor, data[written:], written)
    except OSError as error:
        # The limit of the file size (RLIMIT_FSIZE) applies to each write, also within the file, but not to a mapping.
        if error.errno != errno.EFBIG:
            raise
        with mmap.mmap(descriptor, len(data)) as mapped:
            mapped[:] = data
            mapped.flush()
