"""Tensors of a model, which of them can be averaged, and fused updates. Depends on PyTorch only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def can_be_averaged(tensor: Tensor) -> bool:
    """Return whether a tensor can be interpolated in place; types of 8 bits and less cannot."""
    return can_be_copied(tensor) and tensor.layout is torch.strided and is_inexact(tensor) and tensor.itemsize > 1


def is_inexact(tensor: Tensor) -> bool:
    """Return whether a tensor contains floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def can_be_copied(tensor: Tensor) -> bool:
    """Return whether a tensor can be overwritten in place."""
    return not _describe_uncopyable(to_local(tensor))


def describe_unaveraged(tensor: Tensor) -> str:
    """Return the reason for which a tensor cannot be averaged, or an empty string."""
    if can_be_averaged(tensor):
        return ""
    layout = "" if tensor.layout is torch.strided else str(tensor.layout)
    return (_describe_uncopyable(to_local(tensor)) or layout or str(tensor.dtype)).removeprefix("torch.")


def _describe_uncopyable(tensor: Tensor) -> str:
    """Return the reason for which a tensor cannot be overwritten in place, or an empty string."""
    # A subclass with its own dispatch, such as a quantized weight, supports few operations.
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return type(tensor).__name__
    if tensor.is_meta or tensor.layout not in (torch.strided, torch.sparse_coo):
        return "meta" if tensor.is_meta else str(tensor.layout)
    if tensor.is_neg() or tensor.is_conj():
        return "a conjugated or negated view"
    is_expanded = tensor.layout is torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return "expanded" if is_expanded else ""


def init_average(weight: Tensor, device: torch.device | str | None) -> Tensor:
    """Return an average initialized with a weight, with at least 32 bits if it is averaged.

    A weight that cannot be copied in place is its own average.
    """
    if not can_be_copied(weight):
        return weight.detach()
    if not can_be_averaged(weight):
        return weight.detach().clone().to(device)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return weight.detach().to(weight.device if device is None else device, dtype, copy=True)


def get_tensors(weights: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by name; for a module the parameters and persistent buffers themselves, not detached views.

    Tensors of lazy modules are excluded until they are initialized.
    """
    if not isinstance(weights, nn.Module):
        return dict(weights)
    # Excludes extra state of modules, which is in the state dict but may be any object.
    own = {id(tensor) for tensor in (*weights.parameters(), *weights.buffers()) if not is_lazy(tensor)}
    return {name: value for name, value in weights.state_dict(keep_vars=True).items() if id(value) in own}


def to_local(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor, which shares its memory; any other tensor is returned unchanged."""
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[attr-defined]


def shard_like(average: Tensor, value: Tensor) -> Tensor:
    """Shard a full value like its average; a value that is sharded already is returned unchanged."""
    if not hasattr(average, "device_mesh") or hasattr(value, "device_mesh"):
        return value
    # Imported here because `torch.distributed.tensor` takes long to import.
    from torch.distributed.tensor import DTensor, Replicate

    mesh = average.device_mesh
    # Every rank has loaded the full value, so that the shards are slices: nothing is scattered or broadcast.
    full = DTensor.from_local(value.to(average.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return full.redistribute(placements=average.placements)  # type: ignore[attr-defined]


class Group(NamedTuple):
    """Tensors that are updated by one fused call.

    Attributes:
        averages, weights: Tensors in the same order.
        staging: Preallocated copies of the weights on the device and with the dtype of the averages; None if the
            weights have the same device and dtype.
    """

    averages: list[Tensor]
    weights: list[Tensor]
    staging: list[Tensor] | None

    def update(self, alpha: float) -> None:
        """Interpolate the averages towards the weights: `average += alpha * (weight - average)`."""
        torch._foreach_lerp_(self.averages, self.stage(), alpha)

    def stage(self) -> list[Tensor]:
        """Return the weights on the device and with the dtype of the averages."""
        if self.staging is None:
            return self.weights
        torch._foreach_copy_(self.staging, self.weights)
        return self.staging


def build_groups(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Group]:
    """Group pairs of an average and its weight by device and dtype."""
    # Mixed lists fall back to one kernel per tensor in `torch._foreach_*`.
    groups: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        average, weight = map(to_local, pair)
        key = ((average.device, average.dtype), (weight.device, weight.dtype))
        groups.setdefault(key, []).append((average, weight))
    return [_build_group(group, same=key[0] == key[1]) for key, group in groups.items()]


def _build_group(pairs: list[tuple[Tensor, Tensor]], *, same: bool) -> Group:
    averages, weights = map(list, zip(*pairs, strict=True))
    # Allocated once here, so that an update allocates nothing.
    return Group(averages, weights, None if same else [torch.empty_like(average) for average in averages])
