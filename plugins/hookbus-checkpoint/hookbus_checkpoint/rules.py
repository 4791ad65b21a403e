"""Which of two scores is better, and what a metric's name tells about it. Usable without hookbus."""

from __future__ import annotations

import math
import re
from typing import Literal

__all__ = ["Rule", "file_stem", "infer_rule", "is_better"]

Rule = Literal["greater", "less"]

GREATER = frozenset(
    {"acc", "accuracy", "auc", "f1", "map", "miou", "mdice", "macc", "precision", "psnr", "ssim", "top1", "top5"}
)
LESS = frozenset(
    {"cer", "err", "error", "fid", "loss", "lpips", "mae", "mse", "nll", "perplexity", "ppl", "rmse", "wer"}
)


def infer_rule(metric: str) -> Rule | None:
    """What a metric's name says about the direction, judged by whole words.

    Args:
        metric: a name such as `val/accuracy` or `val_loss`.

    Returns:
        "greater", "less", or None where it says nothing or both.
    """
    words = set(re.findall(r"[a-z]+[0-9]*", metric.lower()))
    greater, less = bool(words & GREATER), bool(words & LESS)
    if greater == less:
        return None
    return "greater" if greater else "less"


def is_better(score: float, best: float | None, rule: Rule) -> bool:
    """Whether a score beats the best so far: strictly, so that a tie keeps the older one; NaN and infinity never do."""
    if not math.isfinite(score):
        return False
    if best is None:
        return True
    return score > best if rule == "greater" else score < best


def file_stem(metric: str) -> str:
    """A metric's name as part of a file name: every sign that a path could misread becomes an underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", metric).strip("._") or "metric"
