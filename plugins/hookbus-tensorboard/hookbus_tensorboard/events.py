"""TensorBoard event files that contain only complete events, also after a full disk or a kill."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from hookbus.writers import AppendOnlyFile, is_plain_file, iter_numbered_paths, open_regular_file

PREFIX = "events.out.tfevents."
_file_counter = count()


class EventFile:
    """Event file with the interface of the `event_writer` of `torch.utils.tensorboard.FileWriter`.

    Args:
        directory: Directory in which the file is created.

    Raises:
        OSError: If the file cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        # TensorBoard reads the files of a directory in the order of their names, so the name of this file has to sort
        # after the existing ones, also within one second or if the clock was set back.
        second = max(int(time.time()), _get_newest_second(directory) + 1)
        name = f"{PREFIX}{second:010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_counter)}"
        self._directory, self._file = directory, AppendOnlyFile(directory / name)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def get_logdir(self) -> str:
        """Return the directory of the file."""
        return str(self._directory)

    def add_event(self, event: Event) -> None:
        """Add an event, which the next `flush` writes."""
        buffer = io.BytesIO()
        RecordWriter(buffer).write(event.SerializeToString())
        self._file.append(buffer.getvalue())

    def flush(self) -> None:
        """Write all pending events.

        Raises:
            OSError: If they cannot be written; the file is unchanged.
        """
        self._file.flush()

    def discard_pending(self) -> None:
        """Discard the pending events."""
        self._file.discard_pending()

    def close(self) -> None:
        """Write the pending events and close the file. May be called twice."""
        self._file.close()


def iter_records(directory: Path, since: int, step: int) -> Iterator[tuple[str, str, int]]:
    """Yield the (type, tag, step) of the values in the event files of a directory, from step `since` to `step`.

    The type is the name of the TensorBoard plugin, or the field of the value if no plugin is named: simple_value,
    image, histo, text, ...

    Args:
        directory: Directory of event files, none of which is being written.
        since: First step.
        step: Last step.
    """
    events = (
        event for path in _find_event_files(directory) for event in _read_events(path) if since <= event.step <= step
    )
    for event in events:
        for value in event.summary.value:
            yield value.metadata.plugin_data.plugin_name or value.WhichOneof("value"), value.tag, event.step


def contains_events(directory: Path) -> bool:
    """Return whether a directory contains event files."""
    return any(_find_event_files(directory))


def move_events(directory: Path) -> Path | None:
    """Move the event files of a directory to a new subdirectory `old`, `old-2`, ..., and return it; None without any.

    Raises:
        OSError: If a file cannot be moved.
    """
    files = _find_event_files(directory)
    if not files:
        return None
    target = next(name for name in iter_numbered_paths(directory / "old") if not os.path.lexists(name))
    target.mkdir()
    for file in files:
        file.rename(target / file.name)
    return target


def _find_event_files(directory: Path) -> list[Path]:
    return sorted(filter(is_plain_file, directory.glob(f"{PREFIX}*")))


def _get_newest_second(directory: Path) -> int:
    """Return the time in the name of the last event file, in seconds since 1970; -1 if there is no file."""
    seconds = (path.name.removeprefix(PREFIX).partition(".")[0] for path in _find_event_files(directory))
    return max((int(second) for second in seconds if second.isdecimal()), default=-1)


def _read_events(path: Path) -> Iterator[Any]:
    """Yield the complete events of a file in TFRecord format: length (8 bytes), checksum (4), data, checksum (4)."""
    with open_regular_file(path, follow=False) as file:
        size = os.fstat(file.fileno()).st_size
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if file.tell() + length + 4 > size:  # a kill during the write truncated the last event
                return
            data = file.read(length + 4)
            with suppress(DecodeError):
                yield Event.FromString(data[:length])
