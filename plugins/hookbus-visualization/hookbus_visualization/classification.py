"""Comparison of the target and the prediction of a sample, as text. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.images import to_array
from hookbus_visualization.palette import class_name, report_unknown_classes
from hookbus_visualization.panel import CORRECT_COLOR, INCORRECT_COLOR, Color

MAX_SHOWN_VALUES = 3
"""Maximum number of elements of a vector that are formatted."""


class ClassificationResult(NamedTuple):
    """Result of a comparison.

    Attributes:
        text: Target and prediction, at most two lines.
        is_correct: Whether the prediction is correct; None if this is undefined or the target or prediction is unknown.
    """

    text: str
    is_correct: bool | None = None

    @property
    def frame(self) -> Color | None:
        """Color of the frame for a correct or an incorrect prediction; None for no frame."""
        return None if self.is_correct is None else CORRECT_COLOR if self.is_correct else INCORRECT_COLOR


def compare_classes(target: Any, prediction: Any, names: Sequence[str] = ()) -> ClassificationResult:
    """Compare the target and the prediction of one sample.

    Args:
        target: A class index, class probabilities, or one or more numbers; None if unknown.
        prediction: Class scores (logits or probabilities), a class index, or one or more numbers; None if unknown.
        names: Names of the classes, by class index.

    Returns:
        For classes: both classes, the probability of the predicted class, and whether it is correct. For numbers: both
        values, and the maximum absolute difference.
    """
    target = None if target is None else to_array(target)
    prediction = None if prediction is None else to_array(prediction)
    if _is_class(target, prediction):
        return _compare_class_ids(target, prediction, names)
    if prediction is not None and prediction.dtype.kind == "f":
        report_anomaly("predicted numbers are NaN or infinite", "They are shown as such.", ~np.isfinite(prediction))
    values = (("true", target), ("predicted", prediction))
    lines = [f"{word} {_format_numbers(value)}" for word, value in values if value is not None]
    if target is not None and prediction is not None and target.size == prediction.size:
        lines[-1] += f", off by {np.abs(target.reshape(-1) - prediction.reshape(-1)).max():.3g}"
    return ClassificationResult("\n".join(lines))


def get_class(target: Any) -> int | None:
    """Return the class index of a target, or the most probable class; None for a negative index or no class."""
    array = to_array(target)
    # Soft labels, as produced by mixup or label smoothing.
    if array.ndim == 1 and array.size > 1 and _sums_to_one(array):
        return int(array.argmax())
    if array.size == 1 and array.dtype.kind in "iub" and array.item() >= 0:
        return int(array.item())
    return None


def to_probabilities(scores: NDArray[Any]) -> NDArray[Any]:
    """Return class scores, (C,), unchanged if they sum to one, otherwise their softmax."""
    if _sums_to_one(scores):
        return scores
    # Subtracting the maximum prevents an overflow of exp.
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(powers / powers.sum())


def _is_class(target: NDArray[Any] | None, prediction: NDArray[Any] | None) -> bool:
    are_scores = prediction is not None and prediction.ndim == 1 and prediction.size > 1
    if target is None:
        return are_scores or (prediction is not None and prediction.size == 1 and prediction.dtype.kind in "iub")
    if target.size == 1:
        # An integer target with a single float prediction is a regression.
        return target.dtype.kind in "iub" and (prediction is None or are_scores or prediction.dtype.kind in "iub")
    return are_scores and target.ndim == 1 and _sums_to_one(target)


def _compare_class_ids(
    target: NDArray[Any] | None, prediction: NDArray[Any] | None, names: Sequence[str]
) -> ClassificationResult:
    true = None if target is None else get_class(target)
    count = prediction.size if prediction is not None and prediction.size > 1 else len(names)
    if true is not None:
        report_unknown_classes(np.array([true]), count)
    line = "" if true is None else f"true {class_name(true, names)}\n"
    if prediction is None:
        return ClassificationResult(line.removesuffix("\n"))
    # argmax returns the index of the first NaN, which would look like a prediction.
    is_invalid = ~np.isfinite(prediction).all()
    report_anomaly("predictions are not finite", "They have no class.", is_invalid)
    if is_invalid:
        return ClassificationResult(f"{line}the prediction is not finite", None if true is None else False)
    predicted = int(prediction.argmax()) if prediction.size > 1 else int(prediction.item())
    probability = f" ({to_probabilities(prediction)[predicted]:.0%})" if prediction.size > 1 else ""
    right = None if true is None else true == predicted
    outcome = "" if right is None else ", right" if right else ", wrong"
    return ClassificationResult(f"{line}predicted {class_name(predicted, names)}{probability}{outcome}", right)


def _format_numbers(array: NDArray[Any]) -> str:
    numbers = [f"{number:.3g}" for number in array.reshape(-1)[:MAX_SHOWN_VALUES].tolist()]
    return ", ".join([*numbers, "…"] if array.size > MAX_SHOWN_VALUES else numbers)


def _sums_to_one(array: NDArray[Any]) -> bool:
    # The sum of probabilities is one only up to rounding errors.
    return bool((array >= 0).all() and abs(float(array.sum()) - 1) < 1e-3)
