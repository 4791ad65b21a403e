"""Saves that are written on another thread while training goes on, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from hookbus import Priority
from hookbus.errors import CheckpointError
from hookbus.model.layouts import layout_of
from hookbus.ranks import Ranks
from hookbus.records.copies import current_stream
from hookbus.run import Run
from hookbus_checkpoint.saving import Save
from hookbus_checkpoint.snapshot import Snapshot
from hookbus_checkpoint.stable import Stable

__all__ = ["Background", "WeightsChanged"]


class WeightsChanged(CheckpointError):
    """Weights that should have stayed as they were until the next update did not, so a copy of them is no good."""


class Background:
    """Copies checkpoints and writes the copies on another thread.

    With `overlap`, weights and the optimizer's state are copied on that thread as well: they do not change until the
    next update, and whoever is about to change them waits. The first copy is made at once, and at the next update it is
    seen whether they are still the same: where a model changes its weights in its forward they are not, and then every
    copy is made at once.

    Args:
        name: of the hook whose saves these are.
        catch_up: called after an iteration when the save is over, with the run.
        overlap: whether to copy while the next forward and backward run.
    """

    def __init__(self, name: str, catch_up: Callable[[Run], None], *, overlap: bool) -> None:
        self._name, self._catch_up, self._overlap = f"{name}.background", catch_up, overlap
        self._snapshot, self._stable = Snapshot(), Stable()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._writing: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        self._is_safe: bool | None = None
        self._is_watching = False
        self._ranks: Ranks | None = None
        self._read_no_more: Callable[[], object] = lambda: None

    # -- the run -----------------------------------------------------------------------------

    def attach(self, run: Run) -> None:
        """Look after each iteration whether the save is over, and wait for the copy before weights change.

        Several processes learn at the next save or at the end that a save is over: one of them alone may not tell.
        """
        if layout_of(run.model) is not None:
            self._ranks = run.ranks.apart()
        if run.ranks.world_size == 1:
            run.bus.on("after_train_iter", name=self._name)(self._look)
        if self._overlap:
            guard = run.bus.on("before_optimizer_step", name=f"{self._name}.guard", priority=Priority.HIGHEST)
            guard(self._before_update)
            self._read_no_more = run.weights.read_by(self._before_exchange)

    def detach(self, run: Run) -> None:
        """Leave the run as it was, once the save is over."""
        for name in (self._name, f"{self._name}.guard"):
            if name in run.bus.hooks:
                run.bus.unregister(name)
        self._read_no_more()
        self._executor.shutdown()
        if self._ranks is not None:
            self._ranks.close()

    # -- saving ------------------------------------------------------------------------------

    def begin(self, save: Save, checkpoint: dict[str, Any], run: Run) -> None:
        """Copy a checkpoint and write the copy; the save before must have been waited for.

        Weights that are spread over processes are written by all of them, each on a thread of its own.
        """
        stable = self._stable.find(checkpoint, run) if self._overlap and self._is_safe is not False else []
        copy = self._snapshot.take(checkpoint, stable)
        overlaps = bool(stable and self._is_safe)
        if overlaps:
            self._stable.watch_weights()
            self._copied.clear()
        else:
            self._snapshot.finish()
            self._is_watching = bool(stable)
        stream = current_stream() if overlaps else None
        self._writing = self._executor.submit(self._write, save, copy, stream)

    def wait(self) -> None:
        """Return once the save is over; there is none afterwards.

        Raises:
            CheckpointError: it could not be written; told once.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    # -- inside ------------------------------------------------------------------------------

    def _write(self, save: Save, copy: dict[str, Any], stream: AbstractContextManager[Any] | None) -> None:
        """Write what was copied; with a stream, which is where updates are queued, weights are copied first."""
        if stream is not None:
            with stream:
                self._copy(save)
        if self._ranks is None:
            save.write(copy)
        else:
            save.write_together(copy, self._ranks)

    def _copy(self, save: Save) -> None:
        try:
            self._stable.watch_states()
            self._snapshot.finish()
            self._snapshot.forget()
            has_stayed = self._stable.stayed()
        finally:
            self._copied.set()  # only now: whoever waits for this is going to change them
        if not has_stayed:
            self._is_safe = False
            raise WeightsChanged(
                f"{save.plan.path} was not written: the weights changed while they were copied, and not by an update. "
                "From now on they are copied at once; say async_save: true for that from the beginning."
            )

    def _look(self, run: Run) -> None:
        if self._writing is not None and self._writing.done():
            self._catch_up(run)

    def _before_update(self, run: Run) -> None:
        self._copied.wait()
        if not self._is_watching:
            return
        self._is_watching = False
        self._is_safe = self._snapshot.stayed()
        if not self._is_safe:
            run.logger.warning(
                "async_save: overlap: weights of this model change outside of updates, so they are copied at once."
            )

    def _before_exchange(self) -> None:
        """Other weights come into the model, which says nothing about its forward: the next save tells."""
        self._copied.wait()
        self._is_watching = False
