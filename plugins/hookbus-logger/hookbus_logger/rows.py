"""What one row of the log holds: plain numbers and strict JSON, from whatever a training reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

__all__ = ["KINDS", "order_of", "plain", "plain_number", "scalars"]

KINDS = ("config", "train", "val", "test", "scalars", "text")
"""The kinds of rows, in the order in which those of one moment stand."""


def scalars(values: Mapping[str, Any], counts: Mapping[str, int] | None = None) -> tuple[dict[str, Any], list[str]]:
    """The fields of a row that hold numbers.

    A number that is not finite becomes null, and `nonfinite` says what it was: "nan", "inf" or "-inf".

    Args:
        values: numbers, tensors or arrays with one element, by name; a name that is no text becomes one.
        counts: how many of the numbers behind a mean were not finite, by name.

    Returns:
        The fields `values`, and where there is something to say `nonfinite` and `nonfinite_counts`; and a sentence
        about each value that is not a single number and was left out.
    """
    numbers: dict[str, float | None] = {}
    bad: dict[str, str] = {}
    problems: list[str] = []
    for key, value in values.items():
        name = str(key)
        try:
            number = plain_number(value)
            is_finite = math.isfinite(number)  # as a float it may be too large
        except OverflowError:
            problems.append(f"{name!r} is larger than any float")
            continue
        except (TypeError, ValueError, RuntimeError):
            problems.append(f"{name!r} is a {type(value).__name__}, not a single number")
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


def plain_number(value: Any) -> int | float:
    """A Python number from a number, or from a tensor or array with one element; a truth value becomes 0 or 1.

    Raises:
        TypeError: it is not a real number.
        ValueError, RuntimeError: it has more than one element (as numpy and torch say it).
    """
    if type(value) is float:
        return value
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, int):
        return int(item)
    if isinstance(item, Real):
        return float(item)
    raise TypeError(f"a {type(item).__name__} is not a real number")


def plain(value: Any) -> Any:
    """Anything as strict JSON: mappings and lists stay, what JSON has no word for becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def order_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The place of a row among those of its moment: by kind, then by the names in it."""
    return KINDS.index(row["kind"]), sorted(row.get("values", ())), row.get("tag", "")
