"""Metrics of a validation or test: objects with `update`, `compute` and `reset`.

torchmetrics objects are supported. A function `(outputs, targets) -> number` is averaged over samples, or called once
with all outputs and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from hookbus._utils.imports import describe_error, import_string
from hookbus.data.batch_sizes import batch_size
from hookbus.data.batches import move_to_device
from hookbus.distributed.process_group import world_size
from hookbus.errors import ConfigError, suggest_names
from hookbus.metrics.windows import exact_sum, to_float, to_widest_float

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


class EvalMetric(Protocol):
    """Protocol of an evaluation metric."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Accumulate one batch."""

    def compute(self) -> Any:
        """Return the result over all batches since the last reset: a number, or a mapping of name to number."""

    def reset(self) -> Any:
        """Reset the metric to its initial state."""


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

    def combine(self, ranks: Collectives) -> None:
        """Sum the counts of all ranks, exactly."""
        counts = ranks.all_gather("accuracy: hits and count", (int(self._hits), self._count))
        self._hits, self._count = map(sum, zip(*counts, strict=True))

    def compute(self) -> Tensor:
        """Return hits / samples as a tensor of shape (), float64 if the device supports it; NaN without samples."""
        return to_widest_float(torch.as_tensor(self._hits)) / self._count

    def reset(self) -> None:
        """Reset the counts."""
        self._hits, self._count = 0, 0


class MeanMetric:
    """Mean of a function over samples.

    Args:
        function: Function `(outputs, targets) -> number` that returns the mean over a batch.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._total: Any = 0.0
        self._weight = 0

    def update(self, outputs: Any, targets: Any, samples: int | None = None) -> None:
        """Accumulate one batch, weighted by its number of samples.

        Args:
            outputs: Output of the model.
            targets: Targets of the batch.
            samples: Number of samples of the batch. Default: that of the targets, or of the outputs.
        """
        value = self._function(outputs, targets)
        weight = (batch_size(targets) or batch_size(outputs) or 1) if samples is None else samples
        # In float64, except on MPS: a float32 total loses digits after many batches.
        self._total = self._total + (to_widest_float(value) if isinstance(value, Tensor) else float(value)) * weight
        self._weight += weight

    def combine(self, ranks: Collectives) -> None:
        """Sum the totals of all ranks with a single rounding."""
        sums = ranks.all_gather("metrics: sum and weight", (to_float(self._total), self._weight))
        # An exact sum does not depend on the order of the ranks.
        self._total, self._weight = exact_sum([total for total, _ in sums]), sum(weight for _, weight in sums)

    def compute(self) -> Any:
        """Return the mean over samples; NaN without samples."""
        return self._total / self._weight if self._weight else float("nan")

    def reset(self) -> None:
        """Reset total and weight."""
        self._total, self._weight = 0.0, 0


class EpochMetric:
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

    def combine(self, ranks: Collectives) -> None:
        """Gather the batches of all ranks on the CPU, in the order of a single process."""
        batches = [(output.cpu(), target.cpu()) for output, target in zip(self._outputs, self._targets, strict=True)]
        # Batches are assigned round-robin; ranks at the end of the last round may have one batch fewer.
        rounds = zip_longest(*ranks.all_gather("metrics: outputs and targets", batches))
        ordered = [batch for batch in chain.from_iterable(rounds) if batch is not None]
        self._outputs, self._targets = [output for output, _ in ordered], [target for _, target in ordered]

    def compute(self) -> Any:
        """Return the value of the function for all batches; NaN without samples."""
        return self._function(torch.cat(self._outputs), torch.cat(self._targets)) if self._outputs else float("nan")

    def reset(self) -> None:
        """Release the stored batches."""
        self._outputs, self._targets = [], []


BUILT_IN: Mapping[str, Callable[[], EvalMetric]] = {"accuracy": Accuracy}


def build_metrics(metrics: Iterable[Any] | Mapping[str, Any], *, streaming: bool = True) -> dict[str, EvalMetric]:
    """Build metrics by name.

    Args:
        metrics: A list of names of built-in metrics, import strings, functions, classes and objects with `update`,
            `compute` and `reset`; or a single one of these; or a mapping of name to one of these.
        streaming: Whether a function is averaged over batches, which are not stored. Otherwise it is called once with
            all outputs and targets. Default: True.

    Raises:
        ConfigError: If a metric is none of these, or two metrics have the same name.
    """
    if isinstance(metrics, Mapping):
        return {name: _build_metric(metric, streaming) for name, metric in metrics.items()}
    built: dict[str, EvalMetric] = {}
    # A MetricCollection is iterable and callable; it is one metric.
    for metric in [metrics] if isinstance(metrics, str) or callable(metrics) or _is_metric(metrics) else metrics:
        name = _get_name(metric)
        if name in built:
            raise ConfigError(f"metrics: {duplicate_name_error(name)}")
        built[name] = _build_metric(metric, streaming)
    return built


def duplicate_name_error(name: str) -> str:
    """Return the error message for two metrics of the same name."""
    return f"two metrics are named {name!r}. Use a mapping with unique names."


def _build_metric(metric: Any, streaming: bool) -> EvalMetric:
    if isinstance(metric, str):
        return BUILT_IN[metric]() if metric in BUILT_IN else _build_metric(_import_metric(metric), streaming)
    if isinstance(metric, type):
        metric = _instantiate(metric)
    # Before `callable`: torchmetrics objects are callable as well.
    if _is_metric(metric):
        _check_syncable(metric)
        return metric  # type: ignore[no-any-return]
    if callable(metric):
        return MeanMetric(metric) if streaming else EpochMetric(metric)
    raise ConfigError(
        f"metrics: expected a name, a function or an object with update, compute and reset, got {metric!r}."
    )


def _is_metric(metric: object) -> bool:
    return all(hasattr(metric, name) for name in ("update", "compute", "reset"))


def _check_syncable(metric: Any) -> None:
    # Checked before training: the error would otherwise occur at the end of the first validation.
    if world_size() > 1 and not hasattr(metric, "combine") and not is_torchmetric(metric):
        raise ConfigError(
            f"metrics: {type(metric).__name__} does not define how to combine its state over {world_size()} "
            "processes. Add a method combine(ranks) that sums what `ranks.all_gather(name, value)` returns for its "
            "totals and counts."
        )


def _instantiate(cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        fix = "Use a function or a class without required arguments, or pass an instance to the Trainer in Python."
        raise ConfigError(f"metrics: {cls.__name__} cannot be built: {describe_error(error)}. {fix}") from error


def _import_metric(path: str) -> Any:
    if "." not in path and ":" not in path:
        raise ConfigError(
            f"metrics: expected a built-in metric or an import string, got {path!r}.{suggest_names(path, BUILT_IN)}"
        )
    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigError(f"metrics: {error}") from None


def _get_name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric.replace(":", ".").rpartition(".")[2]
    name = getattr(metric, "__name__", None) or type(metric).__name__
    # Class names in lowercase, function names unchanged.
    return name.lower() if name[:1].isupper() else name


def is_torchmetric(metric: object) -> bool:
    """Whether an object is a torchmetrics metric or contains such metrics."""
    return isinstance(metric, nn.Module) and bool(_find_metrics(metric))


def sync_torchmetrics(name: str, metric: Any, ranks: Collectives) -> None:
    """Replace the states of a torchmetrics metric with the states of all ranks, reduced as the metric defines."""
    # torchmetrics synchronizes each state with a collective of its own, and deadlocks if the list states of the ranks
    # have different lengths, so all states are gathered in one.
    # In a MetricCollection (torchmetrics 1.x), metrics of one compute group share states, which this property copies
    # to all metrics of the group.
    getattr(metric, "metric_state", None)
    metrics, host = _find_metrics(metric), torch.device("cpu")
    local = [(module.update_count, move_to_device(module.metric_state, host)) for module in metrics]
    gathered = zip(*ranks.all_gather(f"{name}: states", local), strict=True)
    for module, rank_states in zip(metrics, gathered, strict=True):
        module.distributed_available_fn = lambda: False  # `compute` would synchronize the combined states again
        # Ranks without batches are excluded: their initial states would change a mean or a minimum.
        if states := [state for count, state in rank_states if count]:
            _load_states(module, states)


def _find_metrics(metric: nn.Module) -> list[Any]:
    # `_reductions` identifies a Metric without an import of torchmetrics, which is optional.
    return [module for module in metric.modules() if hasattr(module, "_reductions")]


def _load_states(metric: Any, states: Sequence[dict[str, Any]]) -> None:
    for name, reduction in metric._reductions.items():
        setattr(
            metric, name, _reduce_states([move_to_device(state[name], metric.device) for state in states], reduction)
        )


def _reduce_states(states: list[Any], reduction: Any) -> Any:
    """Return the concatenation of list states, or tensor states reduced as the metric defines."""
    if not isinstance(states[0], Tensor):
        return [value for state in states for value in state]
    # A single state is not stacked: a reduction of None would otherwise add a dimension.
    if len(states) == 1:
        return states[0]
    return torch.stack(states) if reduction is None else reduction(torch.stack(states))
