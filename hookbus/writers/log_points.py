"""Implementation of the `log_*` points: values become entries of a queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._events.call_stack import current_points
from hookbus._utils.redaction import escape_surrogates, redact_config
from hookbus.hook import Hook
from hookbus.writers.entries import Entry, EntryFactory, RecentRecords
from hookbus.writers.host_copies import nbytes, snapshot_value
from hookbus.writers.images import figure_to_image, to_uint8_image, unbind_images

if TYPE_CHECKING:
    from hookbus._run.run import Run

OPENING_POINTS = {"before_run", "before_train"}
"""Points that a run repeats when it resumes."""


class LogPointsMixin(Hook):
    """Hook that implements the `log_*` points and enqueues an entry for each value."""

    _entries: EntryFactory
    _opening_records: set[str]
    _start_iteration: int | None
    _recent: RecentRecords

    def log_scalars(self, run: Run, values: Mapping[str, Any], step: int) -> None:
        """Log numbers: results of validations and tests, and those of hooks."""
        source = run.log_source(values)
        # The means of training are logged by this hook over its own interval. The sanity-check validation measures an
        # untrained model on a few batches.
        if run.sanity_checking or (source is not None and source.stage == "train"):
            return
        copies = {
            str(name): snapshot_value(value)
            for name, value in values.items()
            if not self._is_repeated(run, "scalar", str(name))
        }
        self._recent.add(int(step), copies)
        self._enqueue_entry(self._entries.make_numbers(copies, int(step)))

    def log_images(self, run: Run, tag: str, images: Any, step: int, caption: str | None) -> None:
        """Log images; multiple images are named `tag/0`, `tag/1`, ..."""
        image_list, safe_caption = unbind_images(images), caption and escape_surrogates(caption)
        names = [f"{tag}/{i}" for i in range(len(image_list))] if len(image_list) > 1 else [tag]
        for name, image in zip(names, image_list, strict=False):
            # The image is copied now; its conversion to uint8 takes longer and is done on the writer's thread.
            self._enqueue_record(
                run, "image", name, step, partial(_read_image, snapshot_value(image)), nbytes(image), safe_caption
            )

    def log_figure(self, run: Run, tag: str, figure: Any, step: int) -> None:
        """Log a figure as an image."""
        # Rendered immediately: the hook that created the figure may close or reuse it after the event.
        pixels = figure_to_image(figure)
        self._enqueue_record(run, "image", tag, step, lambda: pixels, nbytes(pixels), None)

    def log_histograms(self, run: Run, tag: str, values: Any, step: int) -> None:
        """Log histograms; the histograms of a mapping are named `tag/key`."""
        by_name = (
            {f"{tag}/{key}": item for key, item in values.items()} if isinstance(values, Mapping) else {tag: values}
        )
        for name, item in by_name.items():
            self._enqueue_record(run, "histogram", name, step, snapshot_value(item), nbytes(item))

    def log_text(self, run: Run, tag: str, text: str, step: int) -> None:
        """Log text."""
        self._enqueue_record(run, "text", tag, step, lambda: escape_surrogates(text), len(text))

    def log_config(self, config: Any) -> None:
        """Log the configuration, with its secrets redacted."""
        self.enqueue_config(redact_config(config))

    def log_artifact(self, path: Path, name: str | None) -> None:
        """Log a file."""
        self._enqueue_entry(self._entries.make_file(Path(path), name))

    def after_save_checkpoint(self, path: Path) -> None:
        """Log a checkpoint file if `uploads_checkpoints()` is true."""
        if self.uploads_checkpoints():
            self.log_artifact(path, None)

    def uploads_checkpoints(self) -> bool:
        """Return whether checkpoint files are uploaded to the backend. Default: False."""
        return False

    @abstractmethod
    def enqueue_config(self, config: Mapping[str, Any]) -> None:
        """Enqueue the configuration, whose secrets are already redacted."""

    @abstractmethod
    def _enqueue_entry(self, entry: Entry) -> None: ...

    def _is_repeated(self, run: Run, kind: str, name: str) -> bool:
        """Return whether a resumed run logs a record again at its start; other records of the start are remembered."""
        if self._start_iteration is None and run.resumed is not None:
            self._start_iteration = run.iters_done
        is_started = self._start_iteration not in (None, run.iters_done) or run.clock.mid_iteration
        if is_started or OPENING_POINTS.isdisjoint(current_points(run)):
            return False
        key = f"{kind}:{escape_surrogates(name)}"
        if run.resumed and key in self._opening_records:
            return True
        self._opening_records.add(key)
        return False

    def _enqueue_record(
        self, run: Run, kind: str, name: str, step: int, read: Callable[[], Any], size: int, *more: Any
    ) -> None:
        if not run.sanity_checking and not self._is_repeated(run, kind, name):
            self._enqueue_entry(self._entries.make_record(kind, name, int(step), read, size, *more))


def _read_image(read: Callable[[], Any]) -> Any:
    return to_uint8_image(read())
