"""The best result of a metric, as a run remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Best"]


@dataclass(frozen=True, slots=True)
class Best:
    """The best result of one metric so far.

    Attributes:
        value: the score.
        epoch: the number, from 1, of the epoch in which it was reached.
        step: how many updates were made then.
        weights: which weights earned it, "raw" or "averaged".
        path: the file that holds them, None where none was written.
    """

    value: float
    epoch: int
    step: int
    weights: str = "raw"
    path: Path | None = None

    def state_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {**asdict(self), "path": str(self.path) if self.path else None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Best:
        """Take back what `state_dict` gave."""
        return cls(**{**state, "path": Path(state["path"]) if state["path"] else None})
