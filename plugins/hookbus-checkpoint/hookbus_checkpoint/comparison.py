"""Comparison of scores, and file names of metrics."""

from __future__ import annotations

import math
import re
import unicodedata

from hookbus import Direction

MAX_STEM_BYTES = 180
"""Maximum length in bytes. File names have at most 255 bytes, and temporary files add a prefix and suffix."""


def is_better(score: float, best: float | None, rule: Direction) -> bool:
    """Whether a score improves on the best so far. Ties, NaN and infinities are not improvements."""
    if not math.isfinite(score):
        return False
    if best is None:
        return True
    return score > best if rule == "greater" else score < best


def get_file_stem(metric: str) -> str:
    """Return the name of a metric for use in a file name.

    Letters and digits of any script are kept, other characters are replaced by an underscore.

    Args:
        metric: Name of the metric.

    Returns:
        A non-empty name of at most `MAX_STEM_BYTES` bytes in UTF-8.
    """
    # NFC, so that the composed and the decomposed form of a character result in the same file.
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", metric)).strip("._") or "metric"
    # The limit counts bytes, so the cut may split a character; `ignore` drops the incomplete one.
    return stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")
