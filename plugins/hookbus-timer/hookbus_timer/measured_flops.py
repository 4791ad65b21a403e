"""Number of floating-point operations of a training iteration, counted once."""

from __future__ import annotations

from hookbus.metrics import FlopCounter

MEASURED_ITERATION = 2
"""Number of the measured iteration, from 1 in this process: the first one may compile functions for the others."""


class MeasuredFlops:
    """Count the floating-point operations of one iteration, forward and backward.

    Attributes:
        value: The number of operations; None before it is known, and 0 if the iteration executed none that is counted.
    """

    def __init__(self) -> None:
        self.value: int | None = None
        self._begun = 0
        self._counter: FlopCounter | None = None

    def begin_iteration(self) -> None:
        """Start counting if the iteration is the one to measure."""
        self._begun += 1
        if self.value is None and self._counter is None and self._begun >= MEASURED_ITERATION:
            self._counter = FlopCounter()

    def end_iteration(self, is_skipped: bool) -> bool:
        """Stop counting, and return whether operations were counted in the iteration.

        Args:
            is_skipped: Whether a hook has skipped the iteration; the next one is measured then.
        """
        counter, self._counter = self._counter, None
        if counter is None:
            return False
        flops = counter.stop()
        self.value = None if is_skipped else flops
        return True

    def cancel(self) -> None:
        """Stop counting without a result, and begin again in the next run. Idempotent."""
        self._begun = 0
        if self._counter is not None:
            self._counter.stop()
            self._counter = None
