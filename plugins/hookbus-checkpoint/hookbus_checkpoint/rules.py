"""Which of two scores is better, and what a metric is called in file names."""

from __future__ import annotations

import math
import re
import unicodedata

from hookbus.rules import Rule

__all__ = ["file_stem", "is_better"]

LONGEST_STEM = 180
"""Bytes; a file name has 255 at most, and temporary ones are longer."""


def is_better(score: float, best: float | None, rule: Rule) -> bool:
    """Whether a score beats the best so far: strictly, so that a tie keeps the older one; NaN and infinity never do."""
    if not math.isfinite(score):
        return False
    if best is None:
        return True
    return score > best if rule == "greater" else score < best


def file_stem(metric: str) -> str:
    """A metric's name as part of a file name: letters and digits of any script, and an underscore for other signs.

    One that is too long for a file is cut.
    """
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", metric)).strip("._") or "metric"
    return stem.encode()[:LONGEST_STEM].decode(errors="ignore")
