"""Names and values that are logged during a validation or test."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from hookbus.errors import MetricError
from hookbus.metrics.windows import exact_sum, to_float, to_floats, to_widest_float

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives

EVALUATIONS = {"val": "validation", "test": "test", "predict": "prediction"}
"""Evaluations by the first part of the full names of their results, and what messages call them."""

STAGES = ("train", *EVALUATIONS)
"""First parts of full names that denote where a value was measured."""


class LogScope:
    """Part of a validation or test in which values are logged: one of its loaders, or the validation as a whole.

    Args:
        stage: "val", "test" or "predict".
        loader: Name of the loader; None for the validation as a whole, or for its only loader.
        loaders: Names of all loaders; empty if there is only one.

    Attributes:
        prefix: Start of the full names, such as `val/` or `val/<loader>/`.
    """

    def __init__(self, stage: str, loader: object = None, loaders: Collection[object] = ()) -> None:
        self._stage, self._loader = stage, loader
        self.prefix = get_prefix(stage, loader)
        is_whole = self.prefix == get_prefix(stage, None)
        self._refused = (*(f"{name}/" for name in STAGES), *(f"{n}/" for n in loaders if not is_whole and n != loader))

    def shorten(self, name: str) -> str:
        """Return a name without the prefix of this scope.

        Raises:
            MetricError: If the name has the prefix of training, of another stage or of another loader.
        """
        if "/" not in name:
            return name
        if name.startswith(self.prefix):
            return name[len(self.prefix) :]
        if name.startswith(self._refused):
            where = EVALUATIONS[self._stage]
            part = where if self._loader in (None, "") else f"{where} loader {self._loader!r}"
            raise MetricError(
                f"run.log: the prefix does not denote the {part} in progress, got {name!r}. Log "
                f"{name.rpartition('/')[2]!r}, which becomes {self.prefix + name.rpartition('/')[2]!r}."
            )
        return name


class EvaluationMeans:
    """Means over a validation or test, weighted by the number of samples.

    Args:
        scope: Part of the validation to which the values belong. Default: a validation with one loader.

    Attributes:
        scope: The same.
        weight: Number of samples of the current batch; None if it is unknown, which counts as one.
    """

    def __init__(self, scope: LogScope | None = None) -> None:
        self.scope = scope or LogScope("val")
        self.weight: int | None = None
        # Sums and weights, not means: means over batches or ranks of different sizes cannot be combined.
        self._totals: dict[str, list[Any]] = {}
        self._names: set[str] | None = None  # of the current batch; None in a loop without events of batches

    def begin_batch(self, weight: int | None) -> None:
        """Begin a batch with a number of samples, None if it is unknown. Each name has one value in it."""
        self.weight, self._names = weight, set()

    def add(self, name: str, value: Any, weight: float | None = None) -> None:
        """Add a mean over `weight` samples.

        Args:
            name: Name without prefix.
            value: Number or tensor with one element; it is detached.
            weight: Number of samples. Default: number of samples of the current batch.

        Raises:
            MetricError: If the current batch has a value of this name. The mean would be that of neither.
        """
        if self._names is not None:
            if name in self._names:
                raise MetricError(
                    f"run.log: the batch already has a value of {self.scope.prefix + name!r}, got a second one. Log it "
                    "under another name."
                )
            self._names.add(name)
        if weight is None:
            weight = 1 if self.weight is None else self.weight
        total = self._totals.setdefault(name, [0.0, 0])
        total[0] = total[0] + _to_summand(value) * weight
        total[1] += weight

    def results(self, ranks: Collectives) -> dict[str, float]:
        """Return the means by name, over the samples of all ranks. A collective call; one copy from each device."""
        sums = to_floats([total for total, _ in self._totals.values()])
        weights = [weight for _, weight in self._totals.values()]
        own = dict(zip(self._totals, zip(sums, weights, strict=True), strict=True))
        # Ranks may have logged different metrics, so the names of all ranks are merged, those of rank 0 first.
        totals = ranks.all_gather("validation means", own)
        return {
            name: _weighted_mean([total[name] for total in totals if name in total])
            for name in ChainMap(*reversed(totals))
        }


class LoggedResults:
    """Values that are logged once in a validation or test, outside of its batches. Adding one does not synchronize.

    Args:
        scope: Part of the validation to which the values belong.
        taken: Full names of the results that exist already.
    """

    def __init__(self, scope: LogScope, taken: Collection[str] = ()) -> None:
        self.scope = scope
        self._taken = frozenset(taken)
        self._values: dict[str, Any] = {}  # by full name

    def add(self, name: str, value: Any) -> None:
        """Add a value under a name without prefix.

        Raises:
            MetricError: If the validation has a result of this name. Which of the two values monitors read would depend
                on the order of the hooks.
        """
        full = self.scope.prefix + name
        if full in self._taken or full in self._values:
            raise MetricError(
                f"run.log: the validation already has the result {full!r}, got a second value. Log it under another "
                "name."
            )
        # A copy, since a hook may modify its tensor in place.
        number = _to_summand(value)
        self._values[full] = number.clone() if hasattr(number, "clone") else number

    def take(self) -> dict[str, float]:
        """Remove and return the values by full name, with one copy from each device."""
        values, self._values = self._values, {}
        return dict(zip(values, to_floats(list(values.values())), strict=True))


def get_prefix(stage: str, loader: object) -> str:
    """Return the start of the full names of the results of a loader; None or "" for the only loader."""
    return f"{stage}/" if loader in (None, "") else f"{stage}/{loader}/"


def check_training_name(name: str) -> None:
    """Raise if the full name of a value that is logged in training is that of a validation or test.

    Raises:
        MetricError: If the name starts with `val/` or `test/`.
    """
    stage = name.partition("/")[0]
    if stage != "train" and stage in STAGES:
        point = f"after_{stage}"
        raise MetricError(
            f"run.log: no {EVALUATIONS[stage]} is in progress, got {name!r}. Log it between "
            f"before_{stage} and {point}, or pass it as metrics={{...}} when the loop emits {point}."
        )


def _to_summand(value: Any) -> Any:
    """Return a tensor without dimensions in the widest type, or a number as a float."""
    return to_widest_float(value.detach()).reshape(()) if hasattr(value, "detach") else to_float(value)


def _weighted_mean(totals: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (sum, weight) pairs, NaN if the total weight is 0."""
    weight = sum(weight for _, weight in totals)
    return exact_sum([total for total, _ in totals]) / weight if weight else math.nan
