"""Which way is better? What the name of a metric tells about it."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["Rule", "infer_rule"]

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
