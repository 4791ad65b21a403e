"""Which way is better? What the name of a metric tells about it."""

from __future__ import annotations

import difflib
import re
from typing import Literal

__all__ = ["Rule", "infer_rule", "undecided"]

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
    words = set(_words_of(metric))
    greater, less = bool(words & GREATER), bool(words & LESS)
    if greater == less:
        return None
    return "greater" if greater else "less"


def undecided(metric: str, remedy: str) -> str:
    """What to say where `infer_rule` tells nothing.

    Args:
        metric: the name.
        remedy: how to say the direction instead.
    """
    known = sorted(GREATER | LESS)
    near = [close for word in _words_of(metric) for close in difflib.get_close_matches(word, known, n=1, cutoff=0.8)]
    misspelt = f" Or is {' '.join(near)!r} meant?" if near and not set(near) & set(_words_of(metric)) else ""
    return f"{metric!r} does not tell whether greater or less is better: {remedy}.{misspelt}"


def _words_of(metric: str) -> list[str]:
    return re.findall(r"[a-z]+[0-9]*", metric.lower())
