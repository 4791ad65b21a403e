"""Looks a metric up in results, and remembers whether it was ever there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hookbus import Metrics
from hookbus.errors import HookWarning, MetricError
from hookbus.metrics import resolve
from hookbus_early_stopping.decision import Mode

__all__ = ["Monitor"]


class Monitor:
    """One metric that is watched.

    Args:
        metric: what the user calls it.
        mode: whether less or more of it is better.
        strict: whether it must be in all results; otherwise it is missed with one warning.
    """

    def __init__(self, metric: str, mode: Mode, *, strict: bool) -> None:
        self._metric, self._mode, self._strict = metric, mode, strict
        self._full_name: str | None = None
        self._warned = False

    @property
    def missed(self) -> bool:
        """Whether it was missed so far, and never seen."""
        return self._warned and self._full_name is None

    def score(self, metrics: Metrics) -> float | None:
        """The metric among the results of a validation; None where it is not there.

        Raises:
            MetricError: it is not there, or could be more than one thing; the message lists what there is.
        """
        try:
            self._full_name = resolve(self._metric, metrics)
        except MetricError as error:
            if self._strict:
                raise
            self._warn(f"Early stopping waits for its metric. {error} Set monitor.")
            return None
        return metrics[self._full_name]

    def goes_on_from(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is that of the same metric, whichever way it is spelled, and direction; else a warning."""
        before, mode = state["full_name"], state["mode"]
        if before is None or (mode == self._mode and self._metric in Metrics({before: 0.0})):
            return True
        warnings.warn(
            f"Early stopping judged by {before!r} ({mode}) so far, and now by {self._metric!r} ({self._mode}): it "
            "begins afresh, without a best score.",
            HookWarning,
            stacklevel=3,
        )
        return False

    def state_dict(self) -> dict[str, Any]:
        """The full name under which it was seen, None where it was not; the direction; whether a warning was given."""
        return {"full_name": self._full_name, "mode": self._mode, "warned": self._warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._full_name, self._warned = state["full_name"], state["warned"]

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(problem, HookWarning, stacklevel=3)
