"""Micro-batches that hooks skip: they add no gradients, and their group is completed by the next micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator


class SkippedIterations:
    """Let prepared optimizers and schedulers make no step in the iterations that are skipped.

    Args:
        accelerator: Accelerator whose gradient accumulation to control.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._iteration = -1  # the last one that was skipped
        self._step: int | None = None  # micro-batches of the accelerator after it was skipped

    def skip(self, iteration: int) -> None:
        """Skip a micro-batch. Idempotent in an iteration with several backward passes.

        Args:
            iteration: Number of completed iterations.
        """
        if iteration == self._iteration:
            return
        self._iteration = iteration
        accelerator = self._accelerator
        accelerator.step = self._step = max(accelerator.step - 1, 0)
        accelerator.sync_gradients = False

    def end(self) -> None:
        """Let the optimizers make steps again, at the next backward pass or at the end of the run."""
        # `accumulate` has counted the next micro-batch and decided about its step; a loop without it always steps.
        if self._accelerator.step == self._step:
            self._accelerator.sync_gradients = True
        self._step = None
