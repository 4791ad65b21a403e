"""Metrics of torchmetrics over several processes, those included that have judged nothing.

Left to themselves such metrics exchange one state after another, and wait for ever where processes hold lists of
different lengths. Here all states travel at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookbus.training.batches import move

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["combine_states", "has_states"]


def has_states(score: object) -> bool:
    """Whether a score is a metric of torchmetrics, or holds such metrics."""
    return isinstance(score, nn.Module) and bool(_metrics_in(score))


def combine_states(name: str, score: Any, ranks: Ranks) -> None:
    """Let a metric of torchmetrics go on with the states of all processes.

    States are reduced as the metric itself says. Processes that have judged nothing are left out, so that no mean or
    minimum is taken over states that mean nothing.

    Args:
        name: its name, the same on all processes.
        score: a Metric, a MetricCollection, or a wrapper of them.
        ranks: the processes.
    """
    getattr(score, "metric_state", None)  # a collection brings the states that its metrics share up to date
    metrics, host = _metrics_in(score), torch.device("cpu")
    own = [(metric.update_count, move(metric.metric_state, host)) for metric in metrics]
    for metric, found in zip(metrics, zip(*ranks.gather(f"{name}: states", own), strict=True), strict=True):
        metric.distributed_available_fn = lambda: False  # it is not to exchange anything by itself
        if states := [state for count, state in found if count]:
            _take(metric, states)


def _metrics_in(score: nn.Module) -> list[Any]:
    return [module for module in score.modules() if hasattr(module, "_reductions")]


def _take(metric: Any, states: Sequence[dict[str, Any]]) -> None:
    for name, reduction in metric._reductions.items():
        setattr(metric, name, _together([move(state[name], metric.device) for state in states], reduction))


def _together(found: list[Any], reduction: Any) -> Any:
    """One state of all: lists are what one process would have listed, tensors are reduced as the metric says."""
    if not isinstance(found[0], Tensor):
        return [each for part in found for each in part]
    if len(found) == 1:
        return found[0]
    return torch.stack(found) if reduction is None else reduction(torch.stack(found))
