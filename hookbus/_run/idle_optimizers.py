"""Warnings about optimizers that make no steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookbus._utils.arguments import format_label


class IdleOptimizers:
    """Find the optimizers that made no step since the last call of `find`. Each problem is found once.

    Args:
        counts: Number of steps by optimizer at the start.
        iterations: Number of completed iterations at the start.
        scaler: Gradient scaler, or None.
    """

    def __init__(self, counts: Mapping[str, int], iterations: int, scaler: Any) -> None:
        self._counts, self._iterations = dict(counts), iterations
        self._scaler, self._scale = scaler, _get_scale(scaler)
        self._found: set[tuple[str, bool]] = set()

    def find(self, counts: Mapping[str, int], iterations: int) -> Iterator[str]:
        """Yield a message for each optimizer without steps since the last call. Synchronizes with a device scaler.

        Args:
            counts: Number of steps by optimizer.
            iterations: Number of completed iterations.
        """
        number, scale = iterations - self._iterations, _get_scale(self._scaler)
        is_skipping = scale is not None and self._scale is not None and scale < self._scale
        idle = [name for name, count in counts.items() if count == self._counts.get(name, 0)] if number else []
        for name in idle:
            # An optimizer that has stepped before may pause, such as one of several that alternate.
            if (is_skipping or not counts[name]) and (name, is_skipping) not in self._found:
                self._found.add((name, is_skipping))
                yield self._format(name, number, scale if is_skipping else None)
        self._counts, self._iterations, self._scale = dict(counts), iterations, scale

    def _format(self, name: str, number: int, scale: float | None) -> str:
        label = format_label("optimizer", name)
        if scale is None:
            return (
                f"{label}: no step in {number} iterations, so its parameters are not trained. Call the step() of the "
                "optimizer that was passed to the run."
            )
        return (
            f"{label}: the gradient scaler skipped every step in {number} iterations, because gradients contain inf or "
            f"NaN, and reduced its scale from {self._scale:g} to {scale:g}. Find the first operation that overflows, "
            "or train with bf16."
        )


def _get_scale(scaler: Any) -> float | None:
    """Return the scale of a gradient scaler, None if there is none or it is disabled."""
    if scaler is None or not getattr(scaler, "is_enabled", bool)():
        return None
    return float(scaler.get_scale())
