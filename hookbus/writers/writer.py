"""Writers: the interface between hookbus and experiment trackers.

`run.writer` and `run.visualizer` emit the `log_*` points; the hooks that implement these points write the data. To
support another tracker, subclass `Writer` and `hookbus.WriterHook`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.errors import RejectedRecordsError, format_error
from hookbus.metrics.windows import to_float

if TYPE_CHECKING:
    from hookbus._run.run import Run

RecordKey = tuple[str, str, int]
"""Key of a record: type, name in the backend, step."""


class Writer(ABC):
    """Base class of the writers of an experiment tracker, the backend. `step` is the number of optimizer steps.

    A `WriterHook` calls all methods from a single thread. Images are uint8 tensors of shape (H, W, C) on the CPU.
    Exceptions determine how a failed write is handled:

    - An OSError means that the backend is not available, such as a full disk or a service that is down. The writer is
      abandoned, and after a pause a new writer gets all records since the last `flush`.
    - Any other exception means that this record cannot be written. The record is dropped and counted. If `flush`
      raises, this applies to all records since the last `flush`.
    - A `RejectedRecordsError` means that only the named records cannot be written and all others are.

    Attributes:
        time: Creation time of the current record, in seconds since the epoch; set by the caller.
    """

    time: float = 0.0

    @abstractmethod
    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number under its full name.

        Args:
            name: Full name, such as "val/accuracy".
            value: A number.
            step: Number of optimizer steps.
        """

    @abstractmethod
    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Write an image of shape (H, W, C) or (C, H, W): uint8 in [0, 255] or float in [0, 1].

        Args:
            name: Full name.
            image: Tensor or array of shape (H, W, C) or (C, H, W).
            step: Number of optimizer steps.
            caption: Caption. Default: None, for no caption.
        """

    @abstractmethod
    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration of the run.

        Args:
            config: Resolved configuration as built-in Python types, with secrets redacted.
        """

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write the numbers of one step, by full name. Default: one `write_scalar` call per number.

        Args:
            values: Numbers by full name.
            step: Number of optimizer steps.

        Raises:
            RejectedRecordsError: If some numbers cannot be written.
        """
        errors: dict[str, Exception] = {}
        for name, value in values.items():
            try:
                self.write_scalar(name, value, step)
            except OSError:
                raise
            except Exception as error:
                errors[name] = error
        if errors:
            first, cause = next(iter(errors.items()))
            raise RejectedRecordsError(f"{first!r}: {format_error(cause)}", errors) from cause

    def write_figure(self, name: str, figure: Any, step: int) -> None:
        """Write a matplotlib figure. Default: render the figure and write it as an image.

        Args:
            name: Full name.
            figure: A `matplotlib.figure.Figure`.
            step: Number of optimizer steps.
        """
        from hookbus.writers.images import figure_to_image

        self.write_image(name, figure_to_image(figure), step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:  # noqa: B027 - optional
        """Write a histogram of values. Default: ignore it.

        Args:
            name: Full name.
            values: Tensor, array, or sequence of numbers, of any shape.
            step: Number of optimizer steps.
        """

    def write_text(self, name: str, text: str, step: int) -> None:  # noqa: B027 - optional
        """Write text. Default: ignore it.

        Args:
            name: Full name.
            text: The text, in Markdown.
            step: Number of optimizer steps.
        """

    def write_artifact(self, path: Path, name: str | None = None) -> None:  # noqa: B027 - optional
        """Write a file. Default: ignore it.

        Args:
            path: Path of the file.
            name: Name in the backend. Default: None, for that of the file.
        """

    def write_outcome(self, outcome: str) -> None:  # noqa: B027 - optional
        """Write the outcome of the run: finished, stopped, preempted, interrupted, aborted or failed.

        Called last, after a `flush` of all other records. If the backend becomes unavailable at the end of a run, each
        new writer gets the outcome.

        Args:
            outcome: The outcome, see `run.outcome`.
        """

    def resume(self, since: int, step: int) -> AbstractSet[RecordKey]:
        """Prepare to continue after `step`: remove the records of later steps, if the backend supports it.

        Called once, before any other method.

        Args:
            since: First step of the records to return.
            step: Last step of the checkpoint that the run resumes from.

        Returns:
            Keys of the existing records from step `since` on, which are not written again. Types are "scalar",
            "image", "histogram" and "text".
        """
        return frozenset()

    def flush(self) -> None:  # noqa: B027 - a no-op for unbuffered backends
        """Make all records written so far durable; they are not written again after this call."""

    def abandon(self) -> None:
        """Release all resources after an OSError, without writing the records since the last `flush`."""
        self.close()

    def close(self) -> None:  # noqa: B027 - a no-op for unbuffered backends
        """Write buffered records and release all resources. Idempotent."""


class BusWriter(Writer):
    """The `writer` service, which emits the `log_*` points."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def write_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """Emit a number under its full name; `step` defaults to the current step."""
        self._run.bus.emit("log_scalars", values={name: to_float(value)}, step=step)

    def write_scalars(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Emit numbers by full name, in a single event."""
        self._run.bus.emit("log_scalars", values={name: to_float(value) for name, value in values.items()}, step=step)

    def write_image(self, name: str, image: Any, step: int | None = None, caption: str | None = None) -> None:
        """Emit an image."""
        self._run.bus.emit("log_images", tag=name, images=image, step=step, caption=caption)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Emit the configuration of the run."""
        self._run.bus.emit("log_config", config=config)

    def write_histogram(self, name: str, values: Any, step: int | None = None) -> None:
        """Emit values for a histogram."""
        self._run.bus.emit("log_histograms", tag=name, values=values, step=step)

    def write_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """Emit a matplotlib figure."""
        self._run.bus.emit("log_figure", tag=name, figure=figure, step=step)

    def write_text(self, name: str, text: str, step: int | None = None) -> None:
        """Emit text."""
        self._run.bus.emit("log_text", tag=name, text=text, step=step)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """Emit the path of a file."""
        self._run.bus.emit("log_artifact", path=path, name=name)


class Visualizer:
    """The `visualizer` service: the `add_*` methods of `SummaryWriter`, which emit the `log_*` points."""

    # Further arguments of SummaryWriter, such as `walltime` and `dataformats`, are accepted and ignored.

    def __init__(self, run: Run) -> None:
        self._run = run

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, **_: Any) -> None:
        """Emit a number."""
        self._run.bus.emit("log_scalars", values={tag: to_float(scalar_value)}, step=global_step)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, **_: Any
    ) -> None:
        """Emit numbers with a common prefix: `main_tag/tag`."""
        values = {f"{main_tag}/{tag}": to_float(value) for tag, value in tag_scalar_dict.items()}
        self._run.bus.emit("log_scalars", values=values, step=global_step)

    def add_image(self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any) -> None:
        """Emit an image."""
        self._run.bus.emit("log_images", tag=tag, images=img_tensor, step=global_step)

    def add_images(self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any) -> None:
        """Emit a batch of images."""
        self._run.bus.emit("log_images", tag=tag, images=list(img_tensor), step=global_step)

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, **_: Any) -> None:
        """Emit a matplotlib figure."""
        self._run.bus.emit("log_figure", tag=tag, figure=figure, step=global_step)

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None, **_: Any) -> None:
        """Emit values for a histogram."""
        self._run.bus.emit("log_histograms", tag=tag, values=values, step=global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, **_: Any) -> None:
        """Emit text."""
        self._run.bus.emit("log_text", tag=tag, text=text_string, step=global_step)
