"""Parts of what models and data sets give: by a name, for each sample, the surest. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_of", "per_sample", "surest"]


def first_of(value: Any, names: Iterable[str]) -> Any:
    """The first item of a mapping, or attribute of an object, that is there and is not None; else None."""
    found = (value.get(name) if isinstance(value, Mapping) else getattr(value, name, None) for name in names)
    return next((each for each in found if each is not None), None)


def per_sample(value: Any, count: int) -> list[Any]:
    """What is there for each sample.

    Args:
        value: a sequence, an array or a tensor with one for each sample; a mapping of such, whose other items are left
            out; None for nothing.
        count: of samples.

    Returns:
        `count` values; mappings where a mapping was given, None where nothing was.

    Raises:
        ValueError: the number is another one.
    """
    if value is None:
        return [None] * count
    if isinstance(value, Mapping):
        columns = {key: each for key, each in value.items() if _length(each) == count}
        if not columns:
            raise ValueError(_nothing_in(value, count))
        return [{key: each[i] for key, each in columns.items()} for i in range(count)]
    if _length(value) != count:
        raise ValueError(f"there are {_length(value) or 'none'} for {count} images")
    return list(value)


def surest(scores: NDArray[np.float64], threshold: float) -> NDArray[np.intp]:
    """Which scores are not below a threshold, the surest last. NaN is not hidden, and comes behind all others.

    Args:
        scores: (N,).
        threshold: the least.

    Returns:
        (M,), indices.
    """
    order = np.argsort(scores, kind="stable")
    kept: NDArray[np.intp] = order[~(scores[order] < threshold)]
    return kept


def _length(value: Any) -> int | None:
    """The number of samples; None for what has none."""
    if hasattr(value, "shape"):
        return value.shape[0] if len(value.shape) else None
    return len(value) if isinstance(value, Sequence) else None


def _nothing_in(value: Mapping[Any, Any], count: int) -> str:
    if not value:
        return f"an empty mapping has nothing for {count} images"
    return f"none of {', '.join(map(str, value))} has one for each of {count} images"
