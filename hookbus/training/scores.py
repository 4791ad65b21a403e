"""Metrics of a validation or test: objects with `update`, `compute` and `reset`.

torchmetrics objects are supported. A function `(outputs, targets) -> number` is averaged over samples, or called once
with all outputs and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hookbus._imports import cause_of, import_path
from hookbus.clock import batch_size
from hookbus.distributed import world_size
from hookbus.errors import ConfigError, did_you_mean
from hookbus.training.metric_states import combine_states, has_states
from hookbus.windows import exact_sum, to_float

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["Accuracy", "MeanOf", "OverAll", "Score", "called_twice", "scores_from", "targets_in"]

TARGET_KEYS = ("targets", "target", "labels", "label", "y")


class Score(Protocol):
    """Protocol of an evaluation metric."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Accumulate one batch."""

    def compute(self) -> Any:
        """Return the result over all batches since the last reset: a number, or a mapping of name to number."""

    def reset(self) -> Any:
        """Reset the metric to its initial state."""


class Combinable(Score, Protocol):
    """Protocol of an evaluation metric that defines how its state is combined over ranks."""

    def combine(self, ranks: Ranks) -> object:
        """Combine the state with the states of the other ranks. Called on each rank before `compute`.

        Sum counts and totals, not means. A rank may have had no batches.

        Args:
            ranks: The ranks of the run.
        """


class Accuracy:
    """Fraction of samples whose predicted class equals the target.

    Hits and samples are counted as integers, so the result is exact.
    """

    def __init__(self) -> None:
        self._hits: Any = 0
        self._count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Accumulate one batch.

        Args:
            outputs: Class scores of shape (N, C, ...), or class indices of the shape of `targets`.
            targets: Class indices of shape (N, ...), or one-hot vectors of the shape of `outputs`.
        """
        if outputs.dim() == targets.dim() + 1:
            outputs = outputs.argmax(1)
        # Equal floating-point shapes are one-hot targets, but of one dimension they are class indices.
        elif outputs.shape == targets.shape and outputs.is_floating_point() and outputs.dim() > 1:
            outputs, targets = outputs.argmax(1), targets.argmax(1)
        hits = outputs == targets
        # The sum stays on the device: `int(...)` would synchronize with it for each batch.
        self._hits = self._hits + hits.sum()
        self._count += hits.numel()

    def combine(self, ranks: Ranks) -> None:
        """Sum the counts of all ranks, exactly."""
        counts = ranks.gather("accuracy: hits and count", (int(self._hits), self._count))
        self._hits, self._count = map(sum, zip(*counts, strict=True))

    def compute(self) -> Tensor:
        """Return hits / samples as a float64 tensor of shape (), on the device; NaN without samples."""
        return torch.as_tensor(self._hits, dtype=torch.float64) / self._count

    def reset(self) -> None:
        """Reset the counts."""
        self._hits, self._count = 0, 0


class MeanOf:
    """Mean of a function over samples.

    Args:
        function: Function `(outputs, targets) -> number` that returns the mean over a batch.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._total: Any = 0.0
        self._weight = 0

    def update(self, outputs: Any, targets: Any) -> None:
        """Accumulate one batch, weighted by its number of samples."""
        value = self._function(outputs, targets)
        weight = batch_size(targets) or batch_size(outputs) or 1
        # In float64: a float32 total loses digits after many batches.
        self._total = self._total + (value.double() if isinstance(value, Tensor) else float(value)) * weight
        self._weight += weight

    def combine(self, ranks: Ranks) -> None:
        """Sum the totals of all ranks with a single rounding."""
        sums = ranks.gather("metrics: sum and weight", (to_float(self._total), self._weight))
        # An exact sum does not depend on the order of the ranks.
        self._total, self._weight = exact_sum([total for total, _ in sums]), sum(weight for _, weight in sums)

    def compute(self) -> Any:
        """Return the mean over samples; NaN without samples."""
        return self._total / self._weight if self._weight else float("nan")

    def reset(self) -> None:
        """Reset total and weight."""
        self._total, self._weight = 0.0, 0


class OverAll:
    """Function of all outputs and targets at once, for metrics that are not means over samples, such as F1.

    Args:
        function: Function `(outputs, targets) -> number` of two tensors of shape (N, ...) with N samples.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Store one batch, on its device."""
        self._outputs.append(outputs.detach())
        self._targets.append(targets.detach())

    def combine(self, ranks: Ranks) -> None:
        """Gather the batches of all ranks on the CPU, in the order of a single process."""
        batches = [(output.cpu(), target.cpu()) for output, target in zip(self._outputs, self._targets, strict=True)]
        # Batches are assigned round-robin; ranks at the end of the last round may have one batch fewer.
        rounds = zip_longest(*ranks.gather("metrics: outputs and targets", batches))
        ordered = [batch for batch in chain.from_iterable(rounds) if batch is not None]
        self._outputs, self._targets = [output for output, _ in ordered], [target for _, target in ordered]

    def compute(self) -> Any:
        """Return the value of the function for all batches; NaN without samples."""
        return self._function(torch.cat(self._outputs), torch.cat(self._targets)) if self._outputs else float("nan")

    def reset(self) -> None:
        """Release the stored batches."""
        self._outputs, self._targets = [], []


def combine(metrics: Mapping[str, Score], ranks: Ranks) -> None:
    """Combine metrics with their states on the other ranks; with a single rank, do nothing.

    Args:
        metrics: Metrics by name, equal on all ranks.
        ranks: The ranks of the run.
    """
    if ranks.world_size == 1:
        return
    for name, metric in metrics.items():
        if has_states(metric):
            combine_states(name, metric, ranks)
        else:
            metric.combine(ranks)  # type: ignore[attr-defined]


BUILT_IN: Mapping[str, Callable[[], Score]] = {"accuracy": Accuracy}


def scores_from(metrics: Iterable[Any] | Mapping[str, Any], *, streaming: bool = True) -> dict[str, Score]:
    """Build metrics by name.

    Args:
        metrics: A list of names of built-in metrics, import paths, functions, classes and objects with `update`,
            `compute` and `reset`; or a single one of these; or a mapping of name to one of these.
        streaming: Whether a function is averaged over batches, which are not stored. Otherwise it is called once with
            all outputs and targets. Default: True.

    Raises:
        ConfigError: If a metric is none of these, or two metrics have the same name.
    """
    if isinstance(metrics, Mapping):
        return {name: _score(metric, streaming) for name, metric in metrics.items()}
    built: dict[str, Score] = {}
    # A MetricCollection is iterable and callable; it is one metric.
    for metric in [metrics] if isinstance(metrics, str) or callable(metrics) or _measures(metrics) else metrics:
        name = _name_of(metric)
        if name in built:
            raise ConfigError([f"metrics: {called_twice(name)}"])
        built[name] = _score(metric, streaming)
    return built


def called_twice(name: str) -> str:
    """Return the error message for two metrics of the same name."""
    return f"two metrics are named {name!r}. Use a mapping with unique names."


def targets_in(batch: Any) -> Any:
    """Return the targets of a batch, or None if there are none.

    Args:
        batch: A tuple or list with the targets as its last element, or a mapping with the targets under "targets",
            "target", "labels", "label" or "y".
    """
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[-1]
    if isinstance(batch, Mapping):
        return next((batch[key] for key in TARGET_KEYS if key in batch), None)
    return None


def _score(metric: Any, streaming: bool) -> Score:
    if isinstance(metric, str):
        return BUILT_IN[metric]() if metric in BUILT_IN else _score(_imported(metric), streaming)
    if isinstance(metric, type):
        metric = _built(metric)
    # Before `callable`: torchmetrics objects are callable as well.
    if _measures(metric):
        _see_that_it_combines(metric)
        return metric  # type: ignore[no-any-return]
    if callable(metric):
        return MeanOf(metric) if streaming else OverAll(metric)
    raise ConfigError(
        [f"metrics: expected a name, a function or an object with update, compute and reset, got {metric!r}."]
    )


def _measures(metric: object) -> bool:
    return all(hasattr(metric, name) for name in ("update", "compute", "reset"))


def _see_that_it_combines(metric: Any) -> None:
    # Checked before training: the error would otherwise occur at the end of the first validation.
    if world_size() > 1 and not hasattr(metric, "combine") and not has_states(metric):
        raise ConfigError(
            [
                f"metrics: {type(metric).__name__} does not define how to combine its state over {world_size()} "
                "processes. Add a method combine(ranks) that sums what `ranks.gather(name, value)` returns for its "
                "totals and counts."
            ]
        )


def _built(cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        fix = "Use a function or a class without required arguments, or pass an instance to the Trainer in Python."
        raise ConfigError([f"metrics: {cls.__name__} cannot be built: {cause_of(error)}. {fix}"]) from error


def _imported(path: str) -> Any:
    if "." not in path and ":" not in path:
        raise ConfigError(
            [f"metrics: expected a built-in metric or an import path, got {path!r}.{did_you_mean(path, BUILT_IN)}"]
        )
    try:
        return import_path(path)
    except ImportError as error:
        raise ConfigError([f"metrics: {error}"]) from None


def _name_of(metric: Any) -> str:
    if isinstance(metric, str):
        return metric.replace(":", ".").rpartition(".")[2]
    name = getattr(metric, "__name__", None) or type(metric).__name__
    # Class names in lowercase, function names unchanged.
    return name.lower() if name[:1].isupper() else name
