"""Conversion of logged values to the fields of a row: built-in numbers and strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

KINDS = ("config", "train", "val", "test", "scalars", "text")
"""Kinds of rows, in the order in which rows of one moment are written."""


def to_scalar_fields(
    values: Mapping[str, Any], counts: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Convert scalars to the fields of a row.

    A value that is not finite becomes null in `values`; `nonfinite` contains its text: "nan", "inf" or "-inf".

    Args:
        values: Numbers, or tensors and arrays with one element, by name; names are converted to strings.
        counts: Number of NaN or infinite values in each mean, by name.

    Returns:
        The field `values` and, if not empty, `nonfinite` and `nonfinite_counts`; and a message for each omitted value
        that is not a single number.
    """
    numbers: dict[str, float | None] = {}
    bad: dict[str, str] = {}
    problems: list[str] = []
    for key, value in values.items():
        name = str(key)
        try:
            number = to_number(value)
            is_finite = math.isfinite(number)  # raises OverflowError for an int beyond the range of a float
        except OverflowError:
            problems.append(f"{name!r} exceeds the range of a float")
            continue
        except (TypeError, ValueError, RuntimeError):
            problems.append(f"{name!r} must be a single number, got {type(value).__name__}")
            continue
        numbers[name] = number if is_finite else None
        if not is_finite:
            bad[name] = str(number)
    fields: dict[str, Any] = {"values": numbers}
    if bad:
        fields["nonfinite"] = bad
    if counts:
        fields["nonfinite_counts"] = dict(counts)
    return fields, problems


def to_number(value: Any) -> int | float:
    """Convert a number, or a tensor or array with one element, to an int or float; a bool becomes 0 or 1.

    Raises:
        TypeError: If the value is not a real number.
        ValueError: If an array does not have exactly one element.
        RuntimeError: If a tensor does not have exactly one element.
    """
    # The common case: means are floats already.
    if type(value) is float:
        return value
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, int):
        return int(item)
    if isinstance(item, Real):
        return float(item)
    raise TypeError(f"expected a real number, got {type(item).__name__}")


def to_json(value: Any) -> Any:
    """Convert a value to strict JSON; mappings and lists are converted recursively, other objects become strings."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def get_sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row within its moment: the kind, then the names of its values.

    The content of the row is not trusted; an unknown kind is last.
    """
    kind, tag = row.get("kind"), row.get("tag", "")
    return KINDS.index(kind) if kind in KINDS else len(KINDS), _get_names(row), tag if isinstance(tag, str) else ""


def get_identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the kind and the names of a row, which rows with different values share."""
    kind, names, tag = get_sort_key(row)
    return kind, tuple(names), tag


def has_equal_content(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows contain the same configuration; how a run was resumed is not compared."""
    return bool(_remove_resume(row.get("config")) == _remove_resume(other.get("config")))


def _remove_resume(config: Any) -> Any:
    return {key: value for key, value in config.items() if key != "resume"} if isinstance(config, dict) else config


def _get_names(row: Mapping[str, Any]) -> list[str]:
    values = row.get("values")
    return sorted(values) if isinstance(values, dict) else []
