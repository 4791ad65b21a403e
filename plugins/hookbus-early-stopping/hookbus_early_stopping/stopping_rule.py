"""Stopping rule for a sequence of scores. Depends on the standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

Mode = Literal["min", "max"]
DeltaMode = Literal["abs", "rel"]

STATE = ("best_score", "best_epoch", "wait_count", "last")
"""Attributes that are saved in a checkpoint."""


@dataclass(slots=True)
class StoppingRule:
    """Stopping rule: track the best score, and determine after each score whether to stop.

    | | `min` | `max` |
    |---|---|---|
    | improved | score < best - delta | score > best + delta |
    | good enough | score <= stopping_threshold | score >= stopping_threshold |
    | diverged | score >= divergence_threshold | score <= divergence_threshold |

    `delta` is `min_delta`, or `min_delta * abs(best)` if `min_delta_mode` is "rel". `best` is the last score that was
    accepted as an improvement, so consecutive smaller gains add up until their sum exceeds `delta`; if
    `cumulative_delta` is false, it is the best score, and each gain has to exceed `delta`. A NaN or infinite score is
    neither an improvement nor good enough.

    Args:
        mode: "min" if lower is better, "max" if higher is better.
        patience: Number of consecutive scores without improvement after which to stop. 0 acts as 1.
        min_delta: Minimum change that counts as an improvement, exclusive: in the unit of the score, or a fraction of
            the best score.
        min_delta_mode: "abs" if `min_delta` is in the unit of the score, "rel" if it is a fraction of `abs(best)`.
        cumulative_delta: Whether consecutive gains that do not exceed `min_delta` add up.
        baseline: Initial best score; None to accept any finite first score.
        check_finite: Whether to stop at a NaN or infinite score.
        stopping_threshold: Score from which on the result is good enough to stop; None for no threshold.
        divergence_threshold: Score from which on the training has diverged; None for no threshold.
        occasion: What each score is measured in, a singular noun for messages.

    Attributes:
        best_score: Best score so far; `baseline` before the first improvement.
        best_epoch: Epoch of the best score, None before the first improvement.
        wait_count: Number of consecutive scores without improvement.
        last: Latest score.
    """

    mode: Mode
    _: KW_ONLY
    patience: int = 10
    min_delta: float = 0.0
    min_delta_mode: DeltaMode = "abs"
    cumulative_delta: bool = True
    baseline: float | None = None
    check_finite: bool = True
    stopping_threshold: float | None = None
    divergence_threshold: float | None = None
    occasion: str = "validation"
    best_score: float | None = field(init=False)
    best_epoch: int | None = field(default=None, init=False)
    wait_count: int = field(default=0, init=False)
    last: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.best_score = self.baseline

    def update(self, score: float, epoch: int) -> bool:
        """Add a score.

        Args:
            score: Latest score.
            epoch: Number of the epoch of the score, from 1.

        Returns:
            True if the score is the best one from now on.
        """
        self.last = score
        improves = self._exceeds_best(score, self._delta)
        self.wait_count = 0 if improves else self.wait_count + 1
        if not (improves or (not self.cumulative_delta and self._exceeds_best(score, 0.0))):
            return False
        self.best_score, self.best_epoch = score, epoch
        return True

    @property
    def reason(self) -> str | None:
        """Reason to stop after the latest score, None to continue. The text continues the name of the metric."""
        score, good, bad = self.last, self.stopping_threshold, self.divergence_threshold
        if score is None:
            return None
        # The order matters for NaN and infinity: non-finite first, then divergence, which infinity may also reach.
        if self.check_finite and not math.isfinite(score):
            return f"is not finite, got {score}"
        if bad is not None and self._reaches(bad, score):
            return f"is {score:.6g} and reached the divergence threshold {bad:.6g}"
        # An infinite score of the right sign would pass every threshold without being a good result.
        if good is not None and math.isfinite(score) and self._reaches(score, good):
            return f"is {score:.6g} and reached the stopping threshold {good:.6g}"
        return self._wait_message() if self.wait_count >= max(self.patience, 1) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the best score and its epoch, the number of scores without improvement, and the latest score."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`, except for a baseline without improvement."""
        for name in STATE:
            setattr(self, name, state[name])
        if self.best_epoch is None:
            # The saved best score is the baseline of the previous run; the configured baseline replaces it.
            self.best_score = self.baseline

    @property
    def _sign(self) -> int:
        # All comparisons are written for "max"; multiplying both sides by the sign covers "min".
        return -1 if self.mode == "min" else 1

    @property
    def _delta(self) -> float:
        """Minimum change in the unit of the score."""
        if self.min_delta_mode == "abs" or self.best_score is None:
            return self.min_delta
        return self.min_delta * abs(self.best_score)

    def _exceeds_best(self, score: float, delta: float) -> bool:
        """Whether a finite score is better than the best one by more than `delta`."""
        if self.best_score is None or not math.isfinite(score):
            return math.isfinite(score)
        return self._sign * score > self._sign * self.best_score + delta

    def _reaches(self, score: float, threshold: float) -> bool:
        """Whether a score is equal to the threshold or better."""
        return self._sign * score >= self._sign * threshold

    def _wait_message(self) -> str:
        count = f"{self.wait_count} {self.occasion}{'s' * (self.wait_count != 1)}"
        # Without a baseline every finite first score is an improvement, so all scores were NaN or infinite.
        if self.best_score is None:
            return f"has not been finite in {count}"
        origin = "the baseline" if self.best_epoch is None else f"epoch {self.best_epoch}"
        if not self.cumulative_delta:
            return f"has not gained more than `min_delta` in {count}; the best is {self.best_score:.6g} ({origin})"
        return f"has not improved on {self.best_score:.6g} ({origin}) in {count}"
