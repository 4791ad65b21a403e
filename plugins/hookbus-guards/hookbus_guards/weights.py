"""Detection of model weights that are not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["has_invalid_weights"]


def has_invalid_weights(model: nn.Module, *, gradients: bool = False) -> bool:
    """Return whether a trainable parameter is not finite, or a buffer contains NaN.

    Infinities in buffers are valid: attention masks contain them.

    Args:
        model: Model; of sharded parameters, the local shards are checked.
        gradients: Whether to check the gradients as well.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    finite = [*trainable, *(p.grad for p in trainable if gradients and p.grad is not None)]
    return not all(_to_local(tensor).isfinite().all() for tensor in _select_floating(finite)) or any(
        _to_local(tensor).isnan().any() for tensor in _select_floating(model.buffers())
    )


def _select_floating(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _to_local(tensor: Tensor) -> Tensor:
    # Collective operations of a DTensor would hang if only some ranks check their weights.
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    # `isfinite` is not implemented for float8 types (torch 2.13).
    return local if local.element_size() > 1 else local.to(torch.float32)
