"""Asynchronous saves: checkpoints are copied and written on another thread, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hookbus import Priority, Run
from hookbus.checkpoint import flatten_weights
from hookbus.distributed import named_parameters, sharding_of
from hookbus.errors import CheckpointError, format_path
from hookbus_checkpoint.saving import Save
from hookbus_checkpoint.snapshot import Snapshot, iter_tensors


class WeightsChangedError(CheckpointError):
    """Raised if weights changed during their copy, outside of an optimizer step, so that the copy is invalid."""


class AsyncWriter:
    """Copy checkpoints and write the copies on another thread.

    With `overlap`, weights and optimizer state are copied on that thread as well, during the next forward and backward:
    they do not change before the next optimizer step, which waits for the copy. The first copy is synchronous, and at
    the next optimizer step it is compared with the weights. If they differ, the model changes its weights in its
    forward, and all copies are synchronous.

    The listeners poll for completed saves, and block optimizer steps until copies are complete. With multiple processes
    a completed save is reported at the next save or at the end of the run, because a single rank must not emit events
    on its own.

    Args:
        run: The run, on whose bus the listeners are registered until `close`.
        name: Name of the checkpoint hook.
        on_save_done: Called with the run after an iteration in which a save was completed.
        overlap: Whether to copy during the next forward and backward.
    """

    def __init__(self, run: Run, name: str, on_save_done: Callable[[Run], None], *, overlap: bool) -> None:
        self._name, self._on_save_done, self._overlap = f"{name}.background", on_save_done, overlap
        self._snapshot, self._stable = Snapshot(), StableTensors()
        # One worker: saves are written in order, and never two at a time.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._writing: Future[None] | None = None
        self._copied = threading.Event()
        self._copied.set()
        # Whether overlapped copies are valid for this model; None until the first optimizer step after a save.
        self._overlap_is_valid: bool | None = None
        self._is_comparing = False
        # Collectives of the writer threads must not interleave with those of the training.
        self._ranks = None if sharding_of(run.model) is None else run.ranks.new_group()
        self._listeners: list[str] = []
        self._unregister_reader: Callable[[], object] = lambda: None

    # -- the run -----------------------------------------------------------------------------

    def attach(self, run: Run) -> None:
        """Register the listeners. If that fails, `close` removes those that are registered."""
        if run.ranks.world_size == 1:
            self._register(run, "after_train_iter", self._name, self._poll)
        if self._overlap:
            # HIGHEST, so that no other listener of this event changes the weights before the copy is complete.
            guard = self._before_optimizer_step
            self._register(run, "before_optimizer_step", f"{self._name}.guard", guard, priority=Priority.HIGHEST)
            self._unregister_reader = run.weights.add_reader(self._before_weights_exchange)

    def close(self, run: Run) -> None:
        """Remove the listeners, and shut down the thread after the save in progress."""
        for name in self._listeners:
            if name in run.bus.hooks:
                run.bus.unregister(name)
        self._unregister_reader()
        self._executor.shutdown()
        if self._ranks is not None:
            self._ranks.close()

    def _register(self, run: Run, point: str, name: str, listener: Callable[[Run], None], **options: Any) -> None:
        run.bus.on(point, name=name, **options)(listener)
        self._listeners.append(name)

    # -- saving ------------------------------------------------------------------------------

    def begin(self, save: Save, checkpoint: dict[str, Any], run: Run) -> None:
        """Copy a checkpoint, and write the copy on the thread. `wait` must have been called for the previous save.

        Sharded weights are written by all ranks, each on its own thread.
        """
        stable = self._stable.find(checkpoint, run) if self._overlap and self._overlap_is_valid is not False else []
        copy = self._snapshot.take(checkpoint, stable)
        overlaps = bool(stable and self._overlap_is_valid)
        if overlaps:
            # From here on the thread reads the weights, so a change in place invalidates the copy.
            self._stable.watch_weights()
            self._copied.clear()
        else:
            self._snapshot.finish()
            self._is_comparing = bool(stable)
        # On the stream of the training the copy is ordered before the next optimizer step on the device.
        stream = _get_current_stream() if overlaps else None
        self._writing = self._executor.submit(self._write, save, copy, stream)

    def wait(self) -> None:
        """Block until the save in progress is complete.

        Raises:
            CheckpointError: If it could not be written. Raised once.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    # -- helpers -----------------------------------------------------------------------------

    def _write(self, save: Save, copy: dict[str, Any], stream: AbstractContextManager[Any] | None) -> None:
        """Write a copy; with a stream, complete the copy on this stream first."""
        if stream is not None:
            with stream:
                self._copy(save)
        if self._ranks is None:
            save.write(copy)
        else:
            save.write_collective(copy, self._ranks)

    def _copy(self, save: Save) -> None:
        try:
            # Not in `begin`: listing the optimizer state takes time and would block the training.
            self._stable.watch_states()
            self._snapshot.finish()
            self._snapshot.release_originals()
            is_unchanged = self._stable.is_unchanged()
        finally:
            # After the check: the optimizer step that waits for this event is going to change the weights.
            self._copied.set()
        if not is_unchanged:
            self._overlap_is_valid = False
            raise WeightsChangedError(
                f"{format_path(save.plan.path)} was not written: the weights changed during the copy, outside of "
                "an optimizer step. Later copies are synchronous. Set `async_save: true`."
            )

    def _poll(self, run: Run) -> None:
        if self._writing is not None and self._writing.done():
            self._on_save_done(run)

    def _before_optimizer_step(self, run: Run) -> None:
        self._copied.wait()
        if not self._is_comparing:
            return
        self._is_comparing = False
        self._overlap_is_valid = self._snapshot.is_unchanged()
        if not self._overlap_is_valid:
            run.logger.warning(
                "async_save: overlap: the model changes its weights outside of optimizer steps. Copies are synchronous."
            )

    def _before_weights_exchange(self) -> None:
        """Wait for the copy before other weights are loaded into the model."""
        self._copied.wait()
        # The exchange would look like a change by the model: postpone the comparison to the next save.
        self._is_comparing = False


def _get_current_stream() -> AbstractContextManager[Any]:
    """Return a context manager that selects the device stream of this thread on another thread."""
    device = torch.get_device_module()
    # torch with CUDA, on a machine without a GPU, has the module but no stream. MPS has a single stream.
    if not torch.accelerator.is_available() or not hasattr(device, "stream"):
        return nullcontext()
    stream: AbstractContextManager[Any] = device.stream(device.current_stream())
    return stream


class StableTensors:
    """Find the tensors of a checkpoint that may be copied during the next forward and backward, and detect changes.

    Changes in place are detected by the version counters of the tensors (`Tensor._version`).
    """

    def __init__(self) -> None:
        # Cached from the previous checkpoint: `find` blocks the training, and walking the modules takes time.
        self._names: list[str] = []
        self._weight_names: list[str] = []
        self._weights: list[Tensor] = []
        self._states: list[dict[Any, Any]] = []
        self._watched: list[tuple[Tensor, int]] = []

    def find(self, checkpoint: dict[str, Any], run: Run) -> list[Tensor | dict[Any, Any]]:
        """Find parameters, averages, optimizer state, and the RNG state, which was created for the checkpoint.

        Returns:
            Tensors, and dicts of tensors; empty for a run without an optimizer, whose weights may change at any time.
        """
        self._weights, self._states = [], []
        if run.model is None or run.optimizer is None:
            return []
        state_dict = flatten_weights(checkpoint["state_dict"])
        names = list(state_dict)
        if names != self._names:
            # Buffers are excluded: a forward changes them.
            named = named_parameters(run.model, remove_duplicate=False)
            self._names, self._weight_names = names, [name for name, _ in named if name in state_dict]
        optimizer = checkpoint.get("optimizer", {})
        parts = optimizer.values() if isinstance(run.optimizer, Mapping) else [optimizer]
        states = [part.get("state") for part in parts]
        averages = (checkpoint.get("ema_state_dict"), *checkpoint.get("averages", {}).values())
        others = (*averages, *states, checkpoint["rng"])
        self._weights = [state_dict[name] for name in self._weight_names]
        self._states = [state for state in others if isinstance(state, dict)]
        return [*self._weights, *self._states]

    def watch_weights(self) -> None:
        """Start to detect changes in place of the parameters."""
        self._watched = _get_versions(self._weights)

    def watch_states(self) -> None:
        """Start to detect changes in place of the states as well; may be called on another thread."""
        self._watched += _get_versions(iter_tensors(self._states))

    def is_unchanged(self) -> bool:
        """Whether no watched tensor changed. Ends the detection and releases the tensors."""
        watched, self._watched, self._weights, self._states = self._watched, [], [], []
        return all(tensor._version == version for tensor, version in watched)


def _get_versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    return [(tensor, tensor._version) for tensor in tensors]
