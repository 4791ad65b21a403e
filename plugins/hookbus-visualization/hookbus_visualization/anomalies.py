"""Collection of invalid values that are skipped or replaced in images. Independent of hookbus.

Functions report the values with `report_anomaly`, and `collect_anomalies` collects the reports of its context.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

MAX_EXAMPLES = 5
"""Maximum number of examples and of names in a message."""


@dataclass(slots=True)
class Anomaly:
    """Invalid values of one type.

    Attributes:
        counts: Number of invalid values by the name of their origin.
        total: Number of all values.
        examples: Some of the invalid values.
    """

    counts: Counter[str] = field(default_factory=Counter)
    total: int = 0
    examples: set[int] = field(default_factory=set)

    def describe(self, problem: str, consequence: str) -> str:
        """Return a message with numbers, as in `report_anomaly`."""
        details = [f"{name}: {count}" for name, count in self.counts.most_common(MAX_EXAMPLES) if name and count]
        details += [f"such as {', '.join(map(str, sorted(self.examples)[:MAX_EXAMPLES]))}"] if self.examples else []
        text = f" ({'; '.join(details)})" if details else ""
        return f"{self.counts.total()} of {self.total} {problem}{text}. {consequence}"


Anomalies = dict[tuple[str, str], Anomaly]
"""Anomalies by problem and consequence."""

_collected: ContextVar[Anomalies | None] = ContextVar("collected", default=None)
_name: ContextVar[str] = ContextVar("name", default="")


@contextmanager
def collect_anomalies() -> Iterator[dict[str, str]]:
    """Context manager that collects the reports inside it.

    Yields:
        Messages by problem, complete after the context.
    """
    messages: dict[str, str] = {}
    anomalies: Anomalies = {}
    token = _collected.set(anomalies)
    try:
        yield messages
    finally:
        _collected.reset(token)
        for (problem, consequence), anomaly in anomalies.items():
            if anomaly.counts.total():
                messages[problem] = anomaly.describe(problem, consequence)


@contextmanager
def name_values(name: str) -> Iterator[None]:
    """Context manager that names the origin of the reported values, such as "predicted" or a layer."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def read_named(read: Callable[[Any], T], values: Mapping[str, Any]) -> dict[str, T]:
    """Return the results of a function for the values that are not None; a value is named in anomalies."""
    results = {}
    for name, value in values.items():
        if value is not None:
            with name_values(name):
                results[name] = read(value)
    return results


def report_anomaly(problem: str, consequence: str, is_invalid: Any, values: NDArray[Any] | None = None) -> None:
    """Report the number of invalid values; a no-op outside of `collect_anomalies`.

    Args:
        problem: Plural noun and verb: "boxes are inverted".
        consequence: Sentence on what is drawn instead.
        is_invalid: Boolean array or tensor, with one element per value.
        values: The values, of the same shape, of which the message contains examples.
    """
    if (anomalies := _collected.get()) is not None:
        anomaly = anomalies.setdefault((problem, consequence), Anomaly())
        anomaly.counts[_name.get()] += int(is_invalid.sum())
        anomaly.total += math.prod(is_invalid.shape)
        anomaly.examples.update([] if values is None else np.unique(values[is_invalid]).tolist())
