"""Access to nested model outputs and annotations: by key, by sample, by score. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["get_first", "sort_by_score", "split_samples"]


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
            raise ValueError(_missing_samples_message(value, count))
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if _get_length(value) != count:
        raise ValueError(f"one value is required for each of {count} images, got {_get_length(value) or 'none'}")
    return list(value)


def sort_by_score(scores: NDArray[np.float64], threshold: float) -> NDArray[np.intp]:
    """Return the indices of the scores that are not below a threshold, by ascending score.

    Args:
        scores: Scores, (N,).
        threshold: Minimum score. NaN passes every threshold and is last.

    Returns:
        The indices, (M,).
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


def _missing_samples_message(value: Mapping[Any, Any], count: int) -> str:
    keys = f"a mapping with the keys {', '.join(map(str, value))}" if value else "an empty mapping"
    return f"one value is required for each of {count} images, got {keys}"
