"""Synchronization of torchmetrics metrics over ranks, including ranks that have evaluated no batch.

torchmetrics synchronizes each state with a separate collective and deadlocks if the list states of the ranks have
different lengths. Here all states are gathered in one collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hookbus.data.batches import move_to_device

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


def is_torchmetric(metric: object) -> bool:
    """Whether an object is a torchmetrics metric or contains such metrics."""
    return isinstance(metric, nn.Module) and bool(_find_metrics(metric))


def sync_torchmetrics(name: str, metric: Any, ranks: Collectives) -> None:
    """Replace the states of a torchmetrics metric with the states of all ranks, reduced as the metric defines.

    Args:
        name: Name of the metric, equal on all ranks.
        metric: A Metric, a MetricCollection, or a wrapper of them.
        ranks: The ranks.
    """
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
