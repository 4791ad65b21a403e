"""Is it time to stop? The rule alone; needs nothing but Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Decision", "Mode"]

Mode = Literal["min", "max"]


class Decision:
    """Takes in one score after the other, and tells whether to stop.

    | | `min` | `max` |
    |---|---|---|
    | improved | score < best - min_delta | score > best + min_delta |
    | good enough | score <= stopping_threshold | score >= stopping_threshold |
    | diverged | score >= divergence_threshold | score <= divergence_threshold |

    `best` is the last score that was accepted as an improvement, so small gains add up until they count together.
    A score that is NaN or infinite never is an improvement and never good enough.

    Args:
        mode: whether less ("min") or more ("max") is better.
        patience: how many scores in a row may bring no improvement; at that many it is time to stop. 0 acts as 1.
        min_delta: an improvement is more than this, in the unit of the score.
        baseline: what the first score has to improve on; None where any first score is the best.
        check_finite: whether NaN or infinity is a reason to stop at once.
        stopping_threshold: a score that is good enough to stop; None for none.
        divergence_threshold: a score that is hopeless enough to stop; None for none.

    Attributes:
        best_score: the best so far, `baseline` before the first improvement.
        best_epoch: the epoch of it, None before the first improvement.
        wait_count: scores in a row without improvement.
    """

    KEPT = ("best_score", "best_epoch", "wait_count", "_last")

    def __init__(
        self,
        mode: Mode,
        *,
        patience: int = 10,
        min_delta: float = 0.0,
        baseline: float | None = None,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
    ) -> None:
        self._sign = -1 if mode == "min" else 1
        self._patience, self._min_delta = max(patience, 1), min_delta
        self._check_finite = check_finite
        self._good, self._hopeless = stopping_threshold, divergence_threshold
        self._baseline = self.best_score = baseline
        self.best_epoch: int | None = None
        self.wait_count = 0
        self._last: float | None = None

    def update(self, score: float, epoch: int) -> bool:
        """Take in a score.

        Args:
            score: the newest one.
            epoch: the number of the epoch in which it was reached.

        Returns:
            Whether it is an improvement.
        """
        self._last = score
        if not self._improves(score):
            self.wait_count += 1
            return False
        self.best_score, self.best_epoch, self.wait_count = score, epoch, 0
        return True

    @property
    def reason(self) -> str | None:
        """Why it is time to stop after the newest score, to be read after the metric's name; None where it is not."""
        score = self._last
        if score is None:
            return None
        if self._check_finite and not math.isfinite(score):
            return f"is {score}, which is not finite"
        if self._hopeless is not None and self._reaches(self._hopeless, score):
            return f"is {score:.6g}: it has reached the divergence threshold {self._hopeless:.6g}"
        if self._good is not None and math.isfinite(score) and self._reaches(score, self._good):
            return f"is {score:.6g}: it has reached the stopping threshold {self._good:.6g}"
        return self._impatience() if self.wait_count >= self._patience else None

    def state_dict(self) -> dict[str, Any]:
        """The best, the count of scores without improvement, and the newest score, as plain values."""
        return {name.lstrip("_"): getattr(self, name) for name in self.KEPT}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. A baseline that nothing has improved on yet is the one given now."""
        for name in self.KEPT:
            setattr(self, name, state[name.lstrip("_")])
        if self.best_epoch is None:
            self.best_score = self._baseline

    def _improves(self, score: float) -> bool:
        if not math.isfinite(score):
            return False
        best = self.best_score
        return best is None or self._sign * score > self._sign * best + self._min_delta

    def _reaches(self, score: float, threshold: float) -> bool:
        """Whether a score is as good as the threshold, or better."""
        return self._sign * score >= self._sign * threshold

    def _impatience(self) -> str:
        count = "1 validation" if self.wait_count == 1 else f"{self.wait_count} validations"
        if self.best_score is None:
            return f"has not been finite in {count}"
        where = "the baseline" if self.best_epoch is None else f"epoch {self.best_epoch}"
        return f"has not improved on {self.best_score:.6g} ({where}) in {count}"
