"""Extraction of inputs, targets and predictions from batches and outputs, and access to nested values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus.data import get_targets

# In order of precedence: a batch of a multimodal model may contain both "pixel_values" and "input_ids".
IMAGE_KEYS = ("images", "image", "pixel_values", "inputs", "input", "input_ids", "img", "data", "x")
PREDICTION_KEYS = ("output", "outputs", "logits", "predictions", "prediction", "preds", "pred", "probs", "out")


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a batch, with the device and type of each value unchanged.

    Attributes:
        inputs: Model inputs: one value, a tuple of positional arguments, or a mapping of keyword arguments.
        images: Displayed inputs, one per sample.
        targets: Ground truth, one value per sample; None if unknown.
        predictions: Model predictions, one value per sample, or a mapping of such values; None if unknown.
    """

    inputs: Any = None
    images: Any = None
    targets: Any = None
    predictions: Any = None

    def take_first(self, count: int) -> Samples:
        """Return the first `count` samples, detached from the autograd graph."""
        parts = self.inputs
        inputs = (
            tuple(take_first(part, count) for part in parts) if isinstance(parts, tuple) else take_first(parts, count)
        )
        columns = {name: take_first(getattr(self, name), count) for name in ("images", "targets", "predictions")}
        return replace(self, inputs=inputs, **columns)


def extract_samples(batch: Any, outputs: Any) -> Samples:
    """Extract the samples under the usual keys.

    Args:
        batch: `(inputs, targets)`, `(*inputs, targets)`, a mapping with usual keys, or the inputs.
        outputs: Outputs of the step: a mapping with a usual key, a mapping of predictions (scalars such as losses are
            ignored), or the prediction.

    Returns:
        The samples of the batch.
    """
    targets = get_targets(batch)
    inputs = _extract_inputs(batch)
    images = get_first(batch, IMAGE_KEYS) if isinstance(batch, Mapping) else inputs
    return Samples(inputs, images[0] if isinstance(images, tuple) else images, targets, extract_predictions(outputs))


def extract_predictions(outputs: Any) -> Any:
    """Extract the prediction from the outputs of a step; None if the outputs are scalars only, such as losses."""
    if not isinstance(outputs, Mapping):
        return outputs
    predictions = get_first(outputs, PREDICTION_KEYS)
    others = {key: value for key, value in outputs.items() if not _is_scalar(value)}
    return (others or None) if predictions is None else predictions


def take_first(value: Any, count: int) -> Any:
    """Return the first samples of a tensor, an array or a sequence, or of each value of a mapping.

    Any other value is returned unchanged.
    """
    if isinstance(value, Mapping):
        return {key: take_first(item, count) for key, item in value.items()}
    if getattr(value, "ndim", 0) > 0:
        return (value.detach() if hasattr(value, "detach") else value)[:count]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return list(value[:count])
    return value


def describe_shapes(value: Any) -> str:
    """Format the types and shapes of a nested value, for messages."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {describe_shapes(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        # A batch may be a list of hundreds of images: three items are enough for a message.
        more = f", and {len(value) - 3} more" if len(value) > 3 else ""
        return f"({', '.join(map(describe_shapes, value[:3]))}{more})"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


def _extract_inputs(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return dict(batch)
    if not isinstance(batch, (tuple, list)) or not batch:
        return batch
    parts = batch[:-1] if len(batch) > 1 else batch
    if len(parts) > 1:
        return tuple(parts)
    # Images of different sizes are collated to a tuple. As a list they are one argument of the model, not several.
    return list(parts[0]) if isinstance(parts[0], tuple) else parts[0]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "ndim", 1) == 0


def get_first(value: Any, names: Iterable[str]) -> Any:
    """Return the first item of a mapping, or attribute of an object, that exists and is not None; otherwise None."""
    items = (value.get(name) if isinstance(value, Mapping) else getattr(value, name, None) for name in names)
    return next((item for item in items if item is not None), None)


def split_samples(value: Any, count: int) -> list[Any]:
    """Split a batched value into samples.

    Args:
        value: A sequence, an array or a tensor with one item per sample; a mapping of such values, whose other items
            are ignored; or None.
        count: Number of samples.

    Returns:
        A list of `count` items: mappings if the value is a mapping, None if the value is None.

    Raises:
        ValueError: If the value does not have `count` items.
    """
    if value is None:
        return [None] * count
    if isinstance(value, Mapping):
        # Losses and metadata are next to the predictions in the outputs of many models.
        columns = {key: column for key, column in value.items() if _get_length(column) == count}
        if not columns:
            keys = f"a mapping with the keys {', '.join(map(str, value))}" if value else "an empty mapping"
            raise ValueError(f"one value is required for each of {count} images, got {keys}")
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if _get_length(value) != count:
        raise ValueError(f"one value is required for each of {count} images, got {_get_length(value) or 'none'}")
    return list(value)


def sort_by_score(scores: NDArray[np.float64], threshold: float) -> NDArray[np.intp]:
    """Return the indices of the scores, (N,), that are not below a threshold, by ascending score.

    NaN passes every threshold and is last.
    """
    # Stable: objects with equal scores keep their order, so images are reproducible.
    order = np.argsort(scores, kind="stable")
    # Negated: comparisons with NaN are false, and a score of NaN is an error that must be visible.
    indices: NDArray[np.intp] = order[~(scores[order] < threshold)]
    return indices


def _get_length(value: Any) -> int | None:
    """Return the number of samples; None for scalars and other values without samples."""
    if hasattr(value, "shape"):
        return value.shape[0] if len(value.shape) else None
    return len(value) if isinstance(value, Sequence) else None
