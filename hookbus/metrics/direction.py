"""Direction of a metric, greater or less is better, inferred from its name."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.hook import Direction


# Names whose direction depends on the metric's definition, such as `score` or `distance`, are not listed.
GREATER_IS_BETTER = frozenset(
    {"acc", "accuracy", "auc", "f1", "map", "miou", "mdice", "macc", "precision", "psnr", "ssim", "top1", "top5"}
)


LESS_IS_BETTER = frozenset(
    {"cer", "err", "error", "fid", "loss", "lpips", "mae", "mse", "nll", "perplexity", "ppl", "rmse", "wer"}
)


def infer_direction(metric: str) -> Direction | None:
    """Infer the direction of a metric from the words of its name.

    Args:
        metric: Name such as `val/accuracy` or `val_loss`.

    Returns:
        "greater", "less", or None if the name contains no known word or words of both directions.
    """
    words = set(_split_words(metric))
    greater, less = bool(words & GREATER_IS_BETTER), bool(words & LESS_IS_BETTER)
    if greater == less:
        return None
    return "greater" if greater else "less"


def ambiguous_direction_message(metric: str, fix: str) -> str:
    """Return the error message for a metric whose direction `infer_direction` cannot infer.

    Args:
        metric: Name of the metric.
        fix: Fix in the imperative, such as "Set `rule` to greater or less".
    """
    known, words = sorted(GREATER_IS_BETTER | LESS_IS_BETTER), _split_words(metric)
    matches = [match for word in words for match in difflib.get_close_matches(word, known, n=1, cutoff=0.8)]
    hint = f" Did you mean {' '.join(matches)!r}?" if matches and not set(matches) & set(words) else ""
    return f"the name {metric!r} does not determine whether greater or less is better. {fix}.{hint}"


def _split_words(metric: str) -> list[str]:
    return re.findall(r"[a-z]+[0-9]*", metric.lower())
