"""Looks a metric up in results, and remembers whether it was ever there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from hookbus import Metrics
from hookbus.errors import HookWarning, MetricError

__all__ = ["Monitor"]


class Monitor:
    """One metric that is watched.

    Args:
        metric: what the user calls it.
        strict: whether it must be in all results; otherwise it is missed with one warning.
    """

    def __init__(self, metric: str, *, strict: bool) -> None:
        self._metric, self._strict = metric, strict
        self._seen = self._warned = False

    @property
    def missed(self) -> bool:
        """Whether it was missed so far, and never seen."""
        return self._warned and not self._seen

    def score(self, metrics: Metrics) -> float | None:
        """The metric among the results of a validation; None where it is not there.

        Raises:
            MetricError: it is not there, or could be more than one thing; the message lists what there is.
        """
        try:
            score = metrics[self._metric]
        except MetricError as error:
            if self._strict:
                raise
            self._warn(str(error))
            return None
        self._seen = True
        return score

    def state_dict(self) -> dict[str, bool]:
        """Whether it was seen, and whether a warning was given."""
        return {"seen": self._seen, "warned": self._warned}

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Take back what `state_dict` gave."""
        self._seen, self._warned = state["seen"], state["warned"]

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"Early stopping waits for its metric. {problem} Set monitor.", HookWarning, stacklevel=3)
