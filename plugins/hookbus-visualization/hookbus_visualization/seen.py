"""What of a batch and of what the model made of it is to be drawn: the usual keys, and how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookbus.training.scores import targets_in

__all__ = ["PREDICTION_KEYS", "Seen", "first", "predictions_in", "seen_in", "shapes"]

IMAGE_KEYS = ("images", "image", "pixel_values", "inputs", "input", "input_ids", "img", "data", "x")
PREDICTION_KEYS = ("output", "outputs", "logits", "predictions", "prediction", "preds", "pred", "probs", "out")


@dataclass(frozen=True, slots=True)
class Seen:
    """The samples of a batch that are drawn, each as it was found: on its device, of any type.

    Attributes:
        inputs: what the model is called with: a value, a tuple of several, or a mapping of keywords.
        images: what is looked at, one per sample.
        targets: the truth, one per sample; None for none.
        predictions: what the model made of them, one per sample, or a mapping of values that have one per sample; None
            where it is not known.
    """

    inputs: Any = None
    images: Any = None
    targets: Any = None
    predictions: Any = None

    def first(self, count: int) -> Seen:
        """The first samples alone, without the graph that they were made by."""
        parts = self.inputs
        inputs = tuple(first(each, count) for each in parts) if isinstance(parts, tuple) else first(parts, count)
        others = {name: first(getattr(self, name), count) for name in ("images", "targets", "predictions")}
        return replace(self, inputs=inputs, **others)


def seen_in(batch: Any, outputs: Any) -> Seen:
    """Find it where it usually is.

    Args:
        batch: (inputs, targets), (several, inputs, targets), a mapping with usual keys, or the inputs alone.
        outputs: of the step: a mapping with a usual key, one whose values are the prediction (but for single numbers,
            such as losses), or the prediction itself.
    """
    targets = targets_in(batch)
    inputs = _inputs_in(batch)
    images = _under(IMAGE_KEYS, batch) if isinstance(batch, Mapping) else inputs
    return Seen(inputs, images[0] if isinstance(images, tuple) else images, targets, predictions_in(outputs))


def predictions_in(outputs: Any) -> Any:
    """The prediction among the outputs of a step; None where they hold single numbers alone, such as losses."""
    if not isinstance(outputs, Mapping):
        return outputs
    found = _under(PREDICTION_KEYS, outputs)
    rest = {key: value for key, value in outputs.items() if not _is_number(value)}
    return (rest or None) if found is None else found


def first(value: Any, count: int) -> Any:
    """The first samples of a tensor, an array or a sequence, or of each value of a mapping; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: first(each, count) for key, each in value.items()}
    if getattr(value, "ndim", 0) > 0:
        return (value.detach() if hasattr(value, "detach") else value)[:count]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return list(value[:count])
    return value


def shapes(value: Any) -> str:
    """What a value is made of, in words: for messages."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {shapes(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        more = f", and {len(value) - 3} more" if len(value) > 3 else ""
        return f"({', '.join(map(shapes, value[:3]))}{more})"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


def _inputs_in(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return dict(batch)
    if not isinstance(batch, (tuple, list)) or not batch:
        return batch
    parts = batch[:-1] if len(batch) > 1 else batch
    if len(parts) > 1:
        return tuple(parts)
    return list(parts[0]) if isinstance(parts[0], tuple) else parts[0]  # images of several sizes come as a tuple


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "ndim", 1) == 0


def _under(keys: Sequence[str], values: Mapping[str, Any]) -> Any:
    return next((values[key] for key in keys if key in values), None)
