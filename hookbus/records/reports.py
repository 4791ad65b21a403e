"""Implementation of the `log_*` points: values become entries of a queue."""

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
    """Hook that implements the `log_*` points and enqueues an entry for each value."""

    _entries: Entries
    _recent: Recent

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Log numbers."""
        # The sanity-check validation measures an untrained model on a few batches.
        if run.sanity_checking:
            return
        copies = {str(name): kept(value) for name, value in values.items()}
        self._recent.add(int(step), copies)
        self._put(self._entries.numbers(copies, int(step)))

    def log_images(self, run: Run, tag: str, images: Any, step: int, caption: str | None) -> None:
        """Log images; multiple images are named `tag/0`, `tag/1`, ..."""
        image_list, safe_caption = separate(images), caption and encodable(caption)
        names = [f"{tag}/{i}" for i in range(len(image_list))] if len(image_list) > 1 else [tag]
        for name, image in zip(names, image_list, strict=False):
            # The image is copied now; its conversion to uint8 takes longer and is done on the writer's thread.
            self._record(run, "image", name, step, partial(_pixels, kept(image)), size_of(image), safe_caption)

    def log_figure(self, run: Run, tag: str, figure: Any, step: int) -> None:
        """Log a figure as an image."""
        # Rendered immediately: the hook that created the figure may close or reuse it after the event.
        pixels = figure_pixels(figure)
        self._record(run, "image", tag, step, lambda: pixels, size_of(pixels), None)

    def log_histograms(self, run: Run, tag: str, values: Any, step: int) -> None:
        """Log histograms; the histograms of a mapping are named `tag/key`."""
        by_name = (
            {f"{tag}/{key}": item for key, item in values.items()} if isinstance(values, Mapping) else {tag: values}
        )
        for name, item in by_name.items():
            self._record(run, "histogram", name, step, kept(item), size_of(item))

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Log a text."""
        self._record(run, "text", tag, step, lambda: encodable(text), len(text))

    def log_config(self, config: Any) -> None:
        """Log the configuration, with its secrets redacted."""
        self.put_config(recordable(config))

    def log_artifact(self, path: Path, name: str | None) -> None:
        """Log a file."""
        self._put(self._entries.file(Path(path), name))

    def after_save_checkpoint(self, path: Path) -> None:
        """Log a checkpoint file if `takes_checkpoints()` is true."""
        if self.takes_checkpoints():
            self.log_artifact(path, None)

    def takes_checkpoints(self) -> bool:
        """Return whether checkpoint files are uploaded to the backend. Default: False."""
        return False

    @abstractmethod
    def put_config(self, config: Mapping[str, Any]) -> None:
        """Enqueue the configuration, whose secrets are already redacted."""

    @abstractmethod
    def _put(self, entry: Entry) -> None: ...

    def _record(
        self, run: Run, kind: str, name: str, step: int, read: Callable[[], Any], size: int, *more: Any
    ) -> None:
        if not run.sanity_checking:
            self._put(self._entries.record(kind, name, int(step), read, size, *more))


def _pixels(read: Callable[[], Any]) -> Any:
    return pixels_of(read())
