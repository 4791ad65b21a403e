"""The `Writer` of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import FileWriter, SummaryWriter, summary

from hookbus import Writer
from hookbus.writers import RecordKey, flatten, to_finite_array
from hookbus_tensorboard.events import EventFile, iter_records
from hookbus_tensorboard.inputs import format_config

RECORD_TYPES = {"simple_value": "scalar", "image": "image", "histo": "histogram", "text": "text"}
"""Types of values in event files, and the corresponding record types of hookbus."""


class SyncFileWriter(FileWriter):
    """`FileWriter` on an `EventFile`.

    Args:
        directory: Directory of the event file.
    """

    def __init__(self, directory: Path) -> None:
        # Without `super().__init__()`, whose thread discards its queue on a write error (tensorboard 2.21).
        self.event_writer = EventFile(directory)


class SyncSummaryWriter(SummaryWriter):
    """`SummaryWriter` on `SyncFileWriter`.

    Args:
        directory: Directory of the event file.
    """

    file_writer: Any
    all_writers: Any

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            self.file_writer = SyncFileWriter(Path(self.log_dir))
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
        # Not `SummaryWriter.add_hparams`, which writes a second event file in a subdirectory (torch 2.13).
        for proto in summary.hparams(plain, dict(metrics)):
            self._file_writer.add_summary(proto, step, self.time)

    def resume(self, since: int, step: int) -> frozenset[RecordKey]:
        """Mark the values after `step` as purged, and return the records from step `since` to `step`."""
        values = list(iter_records(self._directory, since, step))
        # TensorBoard ignores all earlier events from the step of a START event on; existing files are not modified.
        start = Event(session_log=SessionLog(status=SessionLog.START))
        self._file_writer.add_event(start, step + 1)
        self._file_writer.flush()
        return frozenset(
            (RECORD_TYPES.get(kind, kind), _get_record_name(kind, tag), at_step) for kind, tag, at_step in values
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


def _get_record_name(kind: str, tag: str) -> str:
    """Return the name of a record: `SummaryWriter.add_text` appends a suffix to the tag."""
    return tag.removesuffix("/text_summary") if kind == "text" else tag


def _to_hparam(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)
