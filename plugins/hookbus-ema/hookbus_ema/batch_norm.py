"""Statistics of the BatchNorm layers of an average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from hookbus.distributed import Collectives


def find_batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers whose statistics training updates: those with statistics that are not frozen by `eval()`.

    In a model that is in evaluation mode as a whole, these are all layers with statistics.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    return [layer for layer in layers if layer.training or not model.training]


def get_statistics(layers: Iterable[_BatchNorm]) -> list[Tensor]:
    """Return the buffers of layers."""
    return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]


def compute_statistics(
    model: nn.Module, layers: Iterable[_BatchNorm], batches: Iterable[Any], forward: Callable[[Any], object]
) -> int:
    """Set the statistics of BatchNorm layers to the means over batches, as `torch.optim.swa_utils.update_bn`.

    Args:
        model: Model with the weights of the average. Its layers are in training mode inside, except for the
            BatchNorm layers that are not in `layers`.
        layers: Layers whose statistics are replaced.
        batches: Training data.
        forward: Function that calls the model with a batch.

    Returns:
        Number of batches.
    """
    count, layers = 0, list(layers)
    for layer in layers:
        layer.reset_running_stats()
    with torch.no_grad(), _cumulative(model, layers):
        for batch in batches:
            forward(batch)
            count += 1
    return count


def sync_statistics(layers: Iterable[_BatchNorm], ranks: Collectives) -> None:
    """Set the statistics of each rank to the means over the ranks, which have the same number of batches each.

    Args:
        layers: Layers with statistics.
        ranks: Collectives of the run.
    """
    statistics = [tensor for tensor in get_statistics(layers) if tensor.is_floating_point()]
    if ranks.world_size == 1 or not statistics:
        return
    flat = torch.cat([tensor.flatten().float() for tensor in statistics])
    means = ranks.all_reduce("statistics of BatchNorm layers", flat) / ranks.world_size
    for tensor, mean in zip(statistics, means.split([tensor.numel() for tensor in statistics]), strict=True):
        tensor.copy_(mean.view_as(tensor))


@contextmanager
def _cumulative(model: nn.Module, layers: list[_BatchNorm]) -> Iterator[None]:
    """Context manager in which layers compute cumulative means, in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    momenta = [(layer, layer.momentum) for layer in layers]
    own = {id(layer) for layer in layers}
    try:
        for module, _ in modes:
            module.training = not isinstance(module, _BatchNorm) or id(module) in own
        for layer in layers:
            layer.momentum = None
        yield
    finally:
        for module, training in modes:
            module.training = training
        for layer, momentum in momenta:
            layer.momentum = momentum
