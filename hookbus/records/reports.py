"""What hooks report at the `log_*` points, on its way into a queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.hook import Hook
from hookbus.pictures import figure_pixels, pixels_of, separate
from hookbus.records.copies import kept, size_of
from hookbus.records.entries import Entries, Recent
from hookbus.records.names import encodable
from hookbus.records.secrets import recordable
from hookbus.records.writer_thread import Entry

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["ReportedHook"]


class ReportedHook(Hook):
    """Makes an entry of each thing that is reported."""

    _entries: Entries
    _recent: Recent

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Record numbers."""
        if run.sanity_checking:
            return
        copies = {str(name): kept(value) for name, value in values.items()}
        self._recent.add(int(step), copies)
        self._put(self._entries.numbers(copies, int(step)))

    def log_images(self, run: Run, tag: str, images: Any, step: int, caption: str | None) -> None:
        """Record pictures; those of a list get the names `tag/0`, `tag/1`, ..."""
        several, under = separate(images), caption and encodable(caption)
        names = [f"{tag}/{i}" for i in range(len(several))] if len(several) > 1 else [tag]
        for name, image in zip(names, several, strict=False):
            self._record(run, "image", name, step, partial(_pixels, kept(image)), size_of(image), under)

    def log_figure(self, run: Run, tag: str, figure: Any, step: int) -> None:
        """Record a figure, drawn at once: who made it may close it."""
        pixels = figure_pixels(figure)
        self._record(run, "image", tag, step, lambda: pixels, size_of(pixels), None)

    def log_histograms(self, run: Run, tag: str, values: Any, step: int) -> None:
        """Record distributions; those of a mapping get the names `tag/key`."""
        named = {f"{tag}/{key}": each for key, each in values.items()} if isinstance(values, Mapping) else {tag: values}
        for name, each in named.items():
            self._record(run, "histogram", name, step, kept(each), size_of(each))

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Record a text."""
        self._record(run, "text", tag, step, lambda: encodable(text), len(text))

    def log_config(self, config: Any) -> None:
        """Record the configuration, its secrets hidden."""
        self.put_config(recordable(config))

    def log_artifact(self, path: Path, name: str | None) -> None:
        """Record a file."""
        self._put(self._entries.file(Path(path), name))

    def after_save_checkpoint(self, path: Path) -> None:
        """Record a checkpoint file, if this back end takes them."""
        if self.takes_checkpoints():
            self.log_artifact(path, None)

    def takes_checkpoints(self) -> bool:
        """Whether checkpoint files are handed to the back end."""
        return False

    @abstractmethod
    def put_config(self, config: Mapping[str, Any]) -> None:
        """Hand the configuration to the back end; its secrets are hidden already."""

    @abstractmethod
    def _put(self, entry: Entry) -> None: ...

    def _record(
        self, run: Run, kind: str, name: str, step: int, read: Callable[[], Any], size: int, *more: Any
    ) -> None:
        if not run.sanity_checking:
            self._put(self._entries.record(kind, name, int(step), read, size, *more))


def _pixels(read: Callable[[], Any]) -> Any:
    return pixels_of(read())
