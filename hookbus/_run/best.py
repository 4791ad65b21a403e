"""Best result of a metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["BestResult"]


@dataclass(frozen=True, slots=True)
class BestResult:
    """Best result of one metric so far.

    Attributes:
        value: Value of the metric.
        epoch: Number of the epoch, from 1, in which the value was reached.
        step: Number of optimizer steps at that time.
        weights: Weights that were evaluated, "raw" or "averaged".
        path: Checkpoint that contains the weights; None if none was written.
    """

    value: float
    epoch: int
    step: int
    weights: str = "raw"
    path: Path | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes as built-in Python types."""
        # `weights_only=True` loads no `Path`.
        return {**asdict(self), "path": str(self.path) if self.path else None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BestResult:
        """Return the object whose `state_dict()` was given."""
        return cls(**{**state, "path": Path(state["path"]) if state["path"] else None})
