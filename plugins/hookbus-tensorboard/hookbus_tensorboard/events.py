"""Event files as TensorBoard reads them, written so that a full disk or a kill leaves whole events only."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from hookbus.records.appended_file import AppendedFile

__all__ = ["EventFile", "places"]

PREFIX = "events.out.tfevents."
_numbers = count()


class EventFile:
    """An event file, in the shape that `torch.utils.tensorboard.FileWriter` writes to.

    Its name sorts behind those that are there, since TensorBoard reads the files of a directory by name.

    Args:
        directory: where it is made.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        second = max(int(time.time()), _newest(directory) + 1)
        name = f"{PREFIX}{second:010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._directory, self._file = directory, AppendedFile(directory / name)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def get_logdir(self) -> str:
        """The directory of the file."""
        return str(self._directory)

    def add_event(self, event: Event) -> None:
        """Put an event into the file, at the next `flush`."""
        buffer = io.BytesIO()
        RecordWriter(buffer).write(event.SerializeToString())
        self._file.put(buffer.getvalue())

    def flush(self) -> None:
        """Write all events that wait.

        Raises:
            OSError: they could not be written; the file is as before.
        """
        self._file.flush()

    def forget(self) -> None:
        """Drop the events that wait."""
        self._file.forget()

    def close(self) -> None:
        """Write what waits, and close the file. May be called twice."""
        self._file.close()


def places(directory: Path, since: int, step: int) -> Iterator[tuple[str, str, int]]:
    """What stands in the event files of a directory: (kind, tag, step), for steps from `since` to `step`.

    Kinds are the plugin that shows it, or the kind of value where none is named: simple_value, image, histo, text, ...

    Args:
        directory: event files, none of which is being written.
        since, step: the first and the last step that are asked for.
    """
    events = (event for path in _event_files(directory) for event in _events(path) if since <= event.step <= step)
    for event in events:
        for value in event.summary.value:
            yield value.metadata.plugin_data.plugin_name or value.WhichOneof("value"), value.tag, event.step


def _event_files(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{PREFIX}*"))


def _newest(directory: Path) -> int:
    """The second in the name of the last event file, -1 where there is none."""
    seconds = (path.name.removeprefix(PREFIX).partition(".")[0] for path in _event_files(directory))
    return max((int(each) for each in seconds if each.isdecimal()), default=-1)


def _events(path: Path) -> Iterator[Any]:
    """The whole events of a file: each is framed by its length of 8 bytes, and checksums of 4 bytes."""
    with open(path, "rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            data = file.read(length + 4)
            if len(data) < length + 4:
                return
            yield Event.FromString(data[:length])
