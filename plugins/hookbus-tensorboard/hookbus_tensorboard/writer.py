"""The `Writer` of TensorBoard, and its files, which contain only complete events, also after a full disk or a kill."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import FileWriter, SummaryWriter, summary

from hookbus import Writer
from hookbus.writers import (
    AppendOnlyFile,
    RecordKey,
    flatten,
    is_plain_file,
    iter_numbered_paths,
    open_regular_file,
    to_finite_array,
)
from hookbus_tensorboard.inputs import format_config

PREFIX = "events.out.tfevents."
_file_counter = count()


class EventFile(AppendOnlyFile):
    """Event file with the interface of the `event_writer` of `torch.utils.tensorboard.FileWriter`."""

    def __init__(self, directory: Path) -> None:
        # TensorBoard reads the files of a directory in the order of their names, so the name of this file has to sort
        # after the existing ones, also within one second or if the clock was set back.
        second = max(int(time.time()), _get_newest_second(directory) + 1)
        name = f"{PREFIX}{second:010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_counter)}"
        super().__init__(directory / name)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def get_logdir(self) -> str:
        """Return the directory of the file."""
        return str(self.path.parent)

    def add_event(self, event: Event) -> None:
        """Add an event, which the next `flush` writes."""
        buffer = io.BytesIO()
        RecordWriter(buffer).write(event.SerializeToString())
        self.append(buffer.getvalue())


def iter_records(directory: Path, since: int, step: int) -> Iterator[tuple[str, str, int]]:
    """Yield the (type, tag, step) of the values in the event files of a directory, from step `since` to `step`.

    The type is the name of the TensorBoard plugin, or the field of the value if no plugin is named: simple_value,
    image, histo, text, ...

    Args:
        directory: Directory of event files, none of which is being written.
        since: First step.
        step: Last step.
    """
    for event in chain.from_iterable(map(_read_events, _find_event_files(directory))):
        if since <= event.step <= step:
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


RECORD_TYPES = {"simple_value": "scalar", "image": "image", "histo": "histogram", "text": "text"}
"""Types of values in event files, and the corresponding record types of hookbus."""


class SyncSummaryWriter(SummaryWriter):
    """`SummaryWriter` on an `EventFile`."""

    file_writer: Any
    all_writers: Any

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            # Without `FileWriter.__init__`, whose thread discards its queue on a write error (tensorboard 2.21).
            self.file_writer = FileWriter.__new__(FileWriter)
            self.file_writer.event_writer = EventFile(Path(self.log_dir))
            self.all_writers = {self.log_dir: self.file_writer}
        return self.file_writer


class TensorBoardWriter(Writer):
    """Writer of event files.

    Args:
        directory: Directory of the event files; created if it does not exist.

    Raises:
        OSError: If the event file cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._summary_writer: Any = SyncSummaryWriter(str(directory))
        self._file_writer: Any = self._summary_writer.file_writer

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a scalar in single precision, including NaN and infinities."""
        self._summary_writer.add_scalar(name, value, step, self.time)

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Write a uint8 image of shape (H, W, C); a caption becomes the text `name/caption`."""
        self._summary_writer.add_image(name, image.numpy(), step, self.time, dataformats="HWC")
        if caption:
            self.write_text(f"{name}/caption", caption, step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """Write a histogram of the finite values.

        Raises:
            ValueError: If no value is finite.
        """
        self._summary_writer.add_histogram(name, to_finite_array(name, values), step, walltime=self.time)

    def write_text(self, name: str, text: str, step: int) -> None:
        """Write a text, which TensorBoard renders as Markdown."""
        self._summary_writer.add_text(name, text, step, self.time)

    def write_config(self, config: Mapping[str, Any], step: int = 0) -> None:
        """Write the configuration as the text `config`; `write_hparams` writes it with the final results."""
        self.write_text("config", format_config(config), step)

    def write_graph(self, graph: Any) -> None:
        """Write the graph of a model, as returned by `trace_graph`."""
        self._file_writer.add_graph(graph, self.time)

    def write_hparams(self, config: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """Write the configuration as hyperparameters, with the final results.

        Args:
            config: Nested configuration; values other than numbers, booleans and strings are converted to strings.
            metrics: Final results by name, which are also scalars of this run.
            step: Number of optimizer steps.
        """
        plain = {key: _to_hparam(value) for key, value in flatten(config).items() if value is not None}
        # Not `SummaryWriter.add_hparams`, which writes a second event file in a subdirectory (torch 2.13). Without the
        # summary of an experiment, TensorBoard compares all runs, and shows the settings first in which they differ.
        _, start, end = summary.hparams(plain, dict(metrics))
        for proto in (start, end):
            self._file_writer.add_summary(proto, step, self.time)

    def resume(self, since: int, step: int) -> frozenset[RecordKey]:
        """Mark the values after `step` as purged, and return the records from step `since` to `step`."""
        values = list(iter_records(self._directory, since, step))
        # TensorBoard ignores all earlier events from the step of a START event on; existing files are not modified.
        start = Event(session_log=SessionLog(status=SessionLog.START))
        self._file_writer.add_event(start, step + 1)
        self._file_writer.flush()
        # `SummaryWriter.add_text` appends a suffix to the tag.
        return frozenset(
            (RECORD_TYPES.get(kind, kind), tag.removesuffix("/text_summary") if kind == "text" else tag, at_step)
            for kind, tag, at_step in values
        )

    def flush(self) -> None:
        """Write all pending events to the file."""
        self._file_writer.flush()

    def abandon(self) -> None:
        """Discard the pending events and close the file."""
        self._file_writer.event_writer.discard_pending()
        self.close()

    def close(self) -> None:
        """Write the pending events and close the file. May be called twice."""
        self._file_writer.close()


def _to_hparam(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)
