"""What is said of a sample, against the truth, in words. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.images import as_array
from hookbus_visualization.panel import RIGHT, WRONG, Colour

__all__ = ["Verdict", "class_of", "judged", "probabilities"]

SHOWN = 3
"""So many numbers of a vector are written out."""


class Verdict(NamedTuple):
    """What was predicted, and whether it is right.

    Attributes:
        text: in words, two lines at most.
        right: whether it is right; None where this is no question, or where one of both is not known.
    """

    text: str
    right: bool | None = None

    @property
    def frame(self) -> Colour | None:
        """The colour of a frame that tells right from wrong."""
        return None if self.right is None else RIGHT if self.right else WRONG


def judged(target: Any, prediction: Any, names: Sequence[str] = ()) -> Verdict:
    """Compare truth and prediction of one sample.

    Args:
        target: a class, as its number or as probabilities of all; or one or several numbers; None for unknown.
        prediction: of classes the scores of all (logits or probabilities) or the number of one; or one or several
            numbers; None for unknown.
        names: of the classes, in their order.

    Returns:
        For classes: both, how probable the predicted one is, right or wrong. For numbers: both, and how far they are
        apart: the greatest absolute difference.
    """
    truth = None if target is None else as_array(target)
    said = None if prediction is None else as_array(prediction)
    if _is_class(truth, said):
        return _of_class(truth, said, names)
    lines = [f"{word} {_numbers(each)}" for word, each in (("true", truth), ("predicted", said)) if each is not None]
    if truth is not None and said is not None and truth.size == said.size:
        lines[-1] += f", off by {np.abs(truth.reshape(-1) - said.reshape(-1)).max():.3g}"
    return Verdict("\n".join(lines))


def class_of(target: Any) -> int | None:
    """The class that a target stands for: its number, or the most probable; None for one below 0, or for no class."""
    array = as_array(target)
    if array.ndim == 1 and array.size > 1 and _sums_to_one(array):
        return int(array.argmax())
    if array.size == 1 and array.dtype.kind in "iub" and array.item() >= 0:
        return int(array.item())
    return None


def probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """Scores of classes as probabilities: as they are where they sum to one, else by softmax. Shape (C,)."""
    if _sums_to_one(scores):
        return scores
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(powers / powers.sum())


def _is_class(truth: NDArray[Any] | None, said: NDArray[Any] | None) -> bool:
    scores = said is not None and said.ndim == 1 and said.size > 1
    if truth is None:
        return scores or (said is not None and said.size == 1 and said.dtype.kind in "iub")
    if truth.size == 1:
        return truth.dtype.kind in "iub" and (said is None or scores or said.dtype.kind in "iub")
    return scores and truth.ndim == 1 and _sums_to_one(truth)


def _of_class(truth: NDArray[Any] | None, said: NDArray[Any] | None, names: Sequence[str]) -> Verdict:
    true = None if truth is None else class_of(truth)
    lines = [] if true is None else [f"true {_name(true, names)}"]
    if said is None:
        return Verdict("\n".join(lines))
    if not np.isfinite(said).all():
        return Verdict("\n".join([*lines, "the prediction is not finite"]), None if true is None else False)
    predicted = int(said.argmax()) if said.size > 1 else int(said.item())
    sure = f" ({probabilities(said)[predicted]:.0%})" if said.size > 1 else ""
    right = None if true is None else true == predicted
    word = "" if right is None else ", right" if right else ", wrong"
    return Verdict("\n".join([*lines, f"predicted {_name(predicted, names)}{sure}{word}"]), right)


def _name(number: int, names: Sequence[str]) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def _numbers(array: NDArray[Any]) -> str:
    shown = [f"{number:.3g}" for number in array.reshape(-1)[:SHOWN].tolist()]
    return ", ".join([*shown, "…"] if array.size > SHOWN else shown)


def _sums_to_one(array: NDArray[Any]) -> bool:
    return bool((array >= 0).all() and abs(float(array.sum()) - 1) < 1e-3)
