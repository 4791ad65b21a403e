"""Ranking of the checkpoints with the best results of each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from hookbus import Direction

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class RankedFile:
    """Checkpoint in a ranking.

    Attributes:
        name: File name.
        value: Result of the metric.
        step: Number of optimizer steps at that time.
    """

    name: str
    value: float
    step: int


@dataclass(slots=True)
class Ranking:
    """Checkpoints with the best results of each metric.

    A new file is added before it is written, and the worst one leaves the ranking when its file is removed: in between,
    a ranking contains more than `size` files.

    Attributes:
        size: Maximum number of files per metric; -1 for all. The best file of a metric itself is written with any size,
            so that a ranking of 0 or 1 contains none.
        files: Files by full name of the metric, best first; of equal results the earlier one first.
    """

    size: int
    files: dict[str, list[RankedFile]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the ranking contains no file with any results."""
        return self.size in (0, 1)

    def accepts(self, metric: str, value: float, rule: Direction) -> bool:
        """Return whether a result is among the best: finite, and better than the last one of a full ranking.

        Args:
            metric: Full name of the metric.
            value: Result.
            rule: Which result is better.
        """
        if self.is_empty or not math.isfinite(value):
            return False
        if self.size == UNLIMITED:
            return True
        # Not the last file: one that exceeds the size may be waiting for its removal on another thread.
        kept = self.files.get(metric, [])[: self.size]
        return len(kept) < self.size or is_better(value, kept[-1].value, rule)

    def add(self, metric: str, file: RankedFile, rule: Direction) -> None:
        """Add a file; one with the same name is replaced."""
        others = [other for other in self.files.get(metric, []) if other.name != file.name]
        self.files[metric] = [*others, file]
        self.sort(metric, rule)

    def sort(self, metric: str, rule: Direction) -> None:
        """Sort the files of a metric; the order of files with equal results is kept."""
        self.files.get(metric, []).sort(key=lambda file: file.value, reverse=rule == "greater")

    def iter_excess(self) -> Iterator[tuple[str, RankedFile]]:
        """Yield the files that exceed the size, with their metrics, worst first. The caller may remove them."""
        if self.size == UNLIMITED:
            return
        kept = 0 if self.is_empty else self.size
        for metric in list(self.files):
            yield from ((metric, file) for file in reversed(self.files[metric][kept:]))

    def discard(self, metric: str, file: RankedFile) -> None:
        """Remove a file from the ranking."""
        self.files[metric].remove(file)

    def remove_missing(self, exists: Callable[[str], bool]) -> list[tuple[str, RankedFile]]:
        """Remove the files for whose names a function returns False, and return them with their metrics."""
        missing = [(metric, file) for metric, files in self.files.items() for file in files if not exists(file.name)]
        for metric, file in missing:
            self.discard(metric, file)
        return missing

    def state_dict(self) -> dict[str, Any]:
        """Return names and results by metric, best first."""
        return {metric: [asdict(file) for file in files] for metric, files in self.files.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.files = {metric: [RankedFile(**file) for file in files] for metric, files in state.items()}


def is_better(score: float, best: float | None, rule: Direction) -> bool:
    """Whether a score improves on the best so far. Ties, NaN and infinities are not improvements."""
    if best is None or not math.isfinite(score):
        return math.isfinite(score)
    return score > best if rule == "greater" else score < best
