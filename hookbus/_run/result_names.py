"""Full names of the results of validations and tests, and their values across ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hookbus.errors import MetricError
from hookbus.metrics.logged import get_prefix
from hookbus.metrics.results import Metrics
from hookbus.metrics.windows import to_float

EvaluationKind = Literal["val", "test"]


def find_differences(gathered: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a description of each result that differs between ranks, such as "val/loss is 1, 4"."""
    values = {name: [results.get(name, math.nan) for results in gathered] for name in gathered[0]}
    # Compared as text: NaN is not equal to itself.
    differing = {name: by_rank for name, by_rank in values.items() if len(set(map(repr, by_rank))) > 1}
    return [f"{name} is {', '.join(f'{value:.6g}' for value in by_rank)}" for name, by_rank in differing.items()]


def merge_ranks(gathered: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], list[str]]:
    """Return the values that ranks have logged, those of the lowest rank, and the differences of `find_differences`."""
    merged = {name: value for values in reversed(gathered) for name, value in values.items()}
    return merged, find_differences([{**merged, **values} for values in gathered])


def name_results(kind: EvaluationKind, loader: str | None, results: Mapping[str, Any]) -> Metrics:
    """Return results under their full names.

    Args:
        kind: "val" or "test".
        loader: Name of the loader if there are multiple loaders.
        results: Results by name. A name that is not a string, such as a class index, is converted.

    Raises:
        MetricError: If a result is not a single number.
    """
    own, prefix = get_prefix(kind, None), get_prefix(kind, loader)
    texts = {str(name): value for name, value in results.items()}
    return Metrics({n if n.startswith(own) else prefix + n: _to_number(n, value) for n, value in texts.items()})


def _to_number(name: str, value: Any) -> float:
    """Return a result as a float."""
    try:
        return to_float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        description = f"{type(value).__name__}{shape}"
        raise MetricError(
            f"validation: the result {name!r} must be a single number, got {description}. Return numbers by name, such "
            "as {'accuracy': 0.9}, with one name per number."
        ) from None


def check_returned(kind: EvaluationKind, returned: Any) -> Mapping[str, Any] | None:
    """Check that a validation or test function returned a mapping or None, and return it."""
    if returned is None or isinstance(returned, Mapping):
        return returned
    label = {"val": "validation", "test": "test"}[kind]
    raise MetricError(
        f"The {label} function must return a mapping or None, got {type(returned).__name__}. Return metrics by name, "
        "such as {'accuracy': 0.9}."
    )
