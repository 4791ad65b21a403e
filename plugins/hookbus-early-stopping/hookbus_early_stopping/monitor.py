"""The monitored metric: its value in the results of a validation, under any of its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookbus import Metrics
from hookbus.errors import MetricError
from hookbus.metrics import resolve_metric_name
from hookbus_early_stopping.stopping_rule import Mode


class Monitor:
    """A monitored metric.

    Args:
        metric: Name of the metric as configured, abbreviated or full.
        mode: "min" if lower is better, "max" if higher is better.
        strict: Whether to raise if a validation lacks the metric; otherwise one warning is logged.
        warn: Function that logs a warning.

    Attributes:
        full_name: Full name of the metric; None if no validation has provided it.
    """

    def __init__(self, metric: str, mode: Mode, *, strict: bool, warn: Callable[[str], None]) -> None:
        self._metric, self._mode, self._strict, self._warn = metric, mode, strict, warn
        self.full_name: str | None = None
        self._warned = False

    def get_score(self, metrics: Metrics) -> float | None:
        """Return the value of the metric.

        Returns:
            The value, or None if the metric is missing and `strict` is False.

        Raises:
            MetricError: If `strict` is True and the metric is missing or ambiguous. The message lists all metrics.
        """
        try:
            self.full_name = resolve_metric_name(self._metric, metrics)
        except MetricError as error:
            if self._strict:
                raise
            # Once per run, resumes included: a metric that is missing in one validation is usually missing in all.
            if not self._warned:
                self._warned = True
                self._warn(f"the monitored metric is missing. {error} Set `monitor`.")
            return None
        return metrics[self.full_name]

    def matches_state(self, state: Mapping[str, Any]) -> bool:
        """Whether a state belongs to the same metric, under any of its names, and direction; warn if it does not."""
        before, mode = state["full_name"], state["mode"]
        # Matching by lookup accepts a resumed run that configures another spelling, such as `accuracy` for
        # `val/accuracy`.
        if before is None or (mode == self._mode and self._metric in Metrics({before: 0.0})):
            return True
        self._warn(
            f"the checkpoint monitors {before!r} ({mode}), this run {self._metric!r} ({self._mode}). The best score "
            "and the number of validations without improvement are reset."
        )
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the full name of the metric (None if never found), the direction, and whether it was warned about."""
        return {"full_name": self.full_name, "mode": self._mode, "warned": self._warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.full_name, self._warned = state["full_name"], state["warned"]
