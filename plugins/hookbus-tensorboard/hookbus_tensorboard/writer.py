"""The `Writer` of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import FileWriter, SummaryWriter, summary

from hookbus import Writer
from hookbus.records.copies import finite_values
from hookbus.records.secrets import flattened
from hookbus.writers import Place
from hookbus_tensorboard.events import EventFile, places

__all__ = ["TensorBoardWriter"]

KINDS = {"simple_value": "scalar", "image": "image", "histo": "histogram", "text": "text"}
"""What event files call things, and what hookbus calls them."""


class Events(FileWriter):
    """A FileWriter of torch that needs no thread of its own.

    Args:
        directory: of the event file.
    """

    def __init__(self, directory: Path) -> None:
        self.event_writer = EventFile(directory)


class Board(SummaryWriter):
    """A SummaryWriter of torch on `Events`.

    Args:
        directory: of the event file.
    """

    file_writer: Any
    all_writers: Any

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            self.file_writer = Events(Path(self.log_dir))
            self.all_writers = {self.log_dir: self.file_writer}
        return self.file_writer


class TensorBoardWriter(Writer):
    """Writes event files into a directory.

    Args:
        directory: where; made if it is not there.

    Raises:
        OSError: nothing can be written there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._board: Any = Board(str(directory))
        self._events: Any = self._board.file_writer

    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """One number, in single precision; NaN and infinities are shown as such."""
        self._board.add_scalar(name, value, step, self.time)

    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """One picture, uint8 (H, W, C); a caption becomes the text `name/caption`."""
        self._board.add_image(name, image.numpy(), step, self.time, dataformats="HWC")
        if caption:
            self.write_text(f"{name}/caption", caption, step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:
        """The distribution of the finite values.

        Raises:
            ValueError: there are none.
        """
        self._board.add_histogram(name, finite_values(name, values), step, walltime=self.time)

    def write_text(self, name: str, text: str, step: int) -> None:
        """A text, as Markdown."""
        self._board.add_text(name, text, step, self.time)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Nothing: the hook writes the configuration as a text, and as hparams at the end."""

    def write_graph(self, graph: Any) -> None:
        """The graph of a model, as `graph_of` returns it."""
        self._events.add_graph(graph, self.time)

    def write_hparams(self, config: Mapping[str, Any], metrics: Mapping[str, float], step: int) -> None:
        """The configuration as hyperparameters, beside final results, which are numbers of this run already.

        Args:
            config: nested; what is no number, truth value or text becomes text.
            metrics: the results by name.
            step: where they stand.
        """
        plain = {key: _hparam(value) for key, value in flattened(config).items() if value is not None}
        for part in summary.hparams(plain, dict(metrics)):
            self._events.add_summary(part, step, self.time)

    def resume(self, since: int, step: int) -> frozenset[Place]:
        """What was written for later steps is purged: readers leave it out."""
        found = list(places(self._directory, since, step))
        start = Event(session_log=SessionLog(status=SessionLog.START))
        self._events.add_event(start, step + 1)
        self._events.flush()
        return frozenset((KINDS.get(kind, kind), _name(kind, tag), at) for kind, tag, at in found)

    def flush(self) -> None:
        """All events are in the file after this."""
        self._events.flush()

    def abandon(self) -> None:
        """Drop what is not in the file, and close it."""
        self._events.event_writer.forget()
        self.close()

    def close(self) -> None:
        """Write what waits, and close the file. May be called twice."""
        self._events.close()


def _name(kind: str, tag: str) -> str:
    """The name that was given: torch writes a text under a tag with an ending."""
    return tag.removesuffix("/text_summary") if kind == "text" else tag


def _hparam(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else str(value)
