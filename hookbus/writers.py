"""Writers: one small interface for everything that records.

`run.writer` and `run.visualizer` do not write; they emit the `log_*` points, and every hook that listens there
records. A back end of one's own subclasses `Writer` and is fed by a `hookbus.WriterHook`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.metrics import to_float

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["BusWriter", "Place", "Visualizer", "Writer"]

Place = tuple[str, str, int]
"""Where a record stands: its kind, the name under which the back end has it, the step."""


class Writer(ABC):
    """What a back end has to be able to write. `step` counts optimizer updates.

    A `WriterHook` feeds it from one thread, and pictures come as uint8 (H, W, C) tensors on the CPU. What it raises
    tells what to do: an OSError means that the back end is in trouble (the disk is full, a service is down): the writer
    is abandoned, and what was written since its last `flush` is written again by another one after a while. Any other
    exception means that this record cannot be written: it is left out, counted, and the next one comes. Out of `flush`
    it means that of everything since the last one.

    Attributes:
        time: when the record in progress was made, in seconds since 1970; set by who feeds the writer.
    """

    time: float = 0.0

    @abstractmethod
    def write_scalar(self, name: str, value: Any, step: int) -> None:
        """One number under its full name."""

    @abstractmethod
    def write_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """One picture: (H, W, C) or (C, H, W), uint8 from 0 to 255 or float from 0 to 1."""

    @abstractmethod
    def write_config(self, config: Mapping[str, Any]) -> None:
        """The configuration of the run."""

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Several numbers of one step by full name; one after the other, unless a back end can do better."""
        for name, value in values.items():
            self.write_scalar(name, value, step)

    def write_figure(self, name: str, figure: Any, step: int) -> None:
        """A matplotlib figure; as a picture, unless a back end can do better."""
        from hookbus.pictures import figure_pixels

        self.write_image(name, figure_pixels(figure), step)

    def write_histogram(self, name: str, values: Any, step: int) -> None:  # noqa: B027 - may be left out
        """The distribution of some values. A back end that cannot leaves it out."""

    def write_text(self, name: str, text: str, step: int) -> None:  # noqa: B027 - may be left out
        """A text. A back end that cannot leaves it out."""

    def write_artifact(self, path: Path, name: str | None = None) -> None:  # noqa: B027 - may be left out
        """A file. A back end that cannot leaves it out."""

    def write_outcome(self, outcome: str) -> None:  # noqa: B027 - may be left out
        """How the run ended: finished, stopped, preempted, interrupted or failed. The last that is written."""

    def resume(self, since: int, step: int) -> AbstractSet[Place]:
        """The run goes on behind `step`: forget what stands on later steps, where that is possible.

        Called once, before anything is written.

        Args:
            since: what stood on earlier steps is not asked for.
            step: the last step that counts.

        Returns:
            What stands on steps from `since` on, as (kind, name, step), and will not be written again; kinds are
            "scalar", "image", "histogram" and "text".
        """
        return frozenset()

    def flush(self) -> None:  # noqa: B027 - nothing to do is the usual case
        """See that what was written so far is where it belongs: it is not written again after this."""

    def abandon(self) -> None:
        """Give up after an OSError: drop what was written since the last `flush`, and give back what is open."""
        self.close()

    def close(self) -> None:  # noqa: B027 - nothing to do is the usual case
        """Write what is still in memory. May be called twice."""


class BusWriter(Writer):
    """The `writer` service: hands everything to the `log_*` points."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def write_scalar(self, name: str, value: Any, step: int | None = None) -> None:
        """One number under its full name; `step` None is the present one."""
        self._run.bus.emit("log_scalars", values={name: to_float(value)}, step=step)

    def write_scalars(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Several numbers by full name, in one event."""
        self._run.bus.emit("log_scalars", values={name: to_float(value) for name, value in values.items()}, step=step)

    def write_image(self, name: str, image: Any, step: int | None = None, caption: str | None = None) -> None:
        """One picture."""
        self._run.bus.emit("log_images", tag=name, images=image, step=step, caption=caption)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """The configuration of the run."""
        self._run.bus.emit("log_config", config=config)

    def write_histogram(self, name: str, values: Any, step: int | None = None) -> None:
        """The distribution of some values."""
        self._run.bus.emit("log_histograms", tag=name, values=values, step=step)

    def write_figure(self, name: str, figure: Any, step: int | None = None) -> None:
        """A matplotlib figure."""
        self._run.bus.emit("log_figure", tag=name, figure=figure, step=step)

    def write_text(self, name: str, text: str, step: int | None = None) -> None:
        """A text."""
        self._run.bus.emit("log_text", tag=name, text=text, step=step)

    def write_artifact(self, path: Path, name: str | None = None) -> None:
        """A file."""
        self._run.bus.emit("log_artifact", path=path, name=name)


class Visualizer:
    """The `visualizer` service: the `add_*` methods of a SummaryWriter, handed to the `log_*` points."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, **_: Any) -> None:
        """One number."""
        self._run.bus.emit("log_scalars", values={tag: to_float(scalar_value)}, step=global_step)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None, **_: Any
    ) -> None:
        """Several numbers under one head."""
        values = {f"{main_tag}/{tag}": to_float(value) for tag, value in tag_scalar_dict.items()}
        self._run.bus.emit("log_scalars", values=values, step=global_step)

    def add_image(self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any) -> None:
        """One picture."""
        self._run.bus.emit("log_images", tag=tag, images=img_tensor, step=global_step)

    def add_images(self, tag: str, img_tensor: Any, global_step: int | None = None, **_: Any) -> None:
        """A batch of pictures."""
        self._run.bus.emit("log_images", tag=tag, images=list(img_tensor), step=global_step)

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, **_: Any) -> None:
        """A matplotlib figure."""
        self._run.bus.emit("log_figure", tag=tag, figure=figure, step=global_step)

    def add_histogram(self, tag: str, values: Any, global_step: int | None = None, **_: Any) -> None:
        """A distribution."""
        self._run.bus.emit("log_histograms", tag=tag, values=values, step=global_step)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, **_: Any) -> None:
        """A text."""
        self._run.bus.emit("log_text", tag=tag, text=text_string, step=global_step)
