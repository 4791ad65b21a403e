"""Selection of parameters, and statistics of their gradients.

Mean and maximum of the absolute values, and L2 norm, per parameter. They are computed on the device of the gradients;
`GradientStats.to_host` copies those of all parameters to the host at once. Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gradient:
    """Statistics of the gradient of one parameter.

    Attributes:
        name: Name of the parameter.
        mean: Mean of the absolute values.
        max: Maximum of the absolute values.
        l2: L2 norm: the square root of the sum of the squares.
    """

    name: str
    mean: float
    max: float
    l2: float


@dataclass(frozen=True, slots=True)
class GradientStats:
    """Statistics of the gradients of a model, on the device.

    Attributes:
        names: Names of the parameters that have a gradient.
        missing: Names of the parameters that require a gradient and have none.
        sizes: Number of elements of each parameter in `names`.
        row_indices: Index into `names` of each row of `norms`.
        norms: Tensor of shape (len(names), 3): sum and maximum of the absolute values, and L2 norm; None if `names`
            is empty.
    """

    names: list[str]
    missing: list[str]
    sizes: list[int]
    row_indices: list[int]
    norms: Tensor | None

    def to_host(self) -> list[Gradient]:
        """Copy the statistics to the host, which synchronizes the device."""
        rows = dict(zip(self.row_indices, [] if self.norms is None else self.norms.tolist(), strict=True))
        return [
            Gradient(name, rows[i][0] / size, rows[i][1], rows[i][2])
            for i, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
        ]


@torch.no_grad()
def compute_gradient_stats(parameters: Mapping[str, Tensor], scale: Tensor | None = None) -> GradientStats:
    """Compute the statistics of the gradients without synchronizing the device.

    Args:
        parameters: Parameters by name; empty and frozen parameters are ignored.
        scale: Loss scale of the gradients as a scalar tensor; None if they are not scaled.
    """
    trainable = {
        name: parameter for name, parameter in parameters.items() if parameter.requires_grad and parameter.numel()
    }
    by_name = {name: _to_dense(parameter.grad) for name, parameter in trainable.items() if parameter.grad is not None}
    missing = [name for name in trainable if name not in by_name]
    # The size of the parameter, not of the gradient: a sparse gradient has fewer values.
    sizes = [trainable[name].numel() for name in by_name]
    gradients, groups = list(by_name.values()), _group_by_dtype(by_name.values())
    norms = _compute_norms([[gradients[i] for i in group] for group in groups], scale) if groups else None
    return GradientStats(list(by_name), missing, sizes, [i for group in groups for i in group], norms)


def get_loss_scale(scaler: Any, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """Return the loss scale of a gradient scaler as a scalar tensor on the device of the first parameter.

    Args:
        scaler: A `torch.amp.GradScaler`, or None.
        parameters: Parameters whose gradients are scaled.

    Returns:
        The loss scale; None if the scaler is None or disabled, or no parameters are passed.
    """
    if scaler is None or not scaler.is_enabled() or not parameters:
        return None
    # `scaler.get_scale()` would copy the scale to the host and synchronize the device.
    scaled: Tensor = scaler.scale(torch.ones((), device=next(iter(parameters.values())).device))
    return scaled


def _to_dense(gradient: Tensor) -> Tensor:
    """Return the values of a gradient as a real dense tensor with the same norms."""
    # Implicit zeros of a sparse gradient change none of the norms; duplicate indices do, hence `coalesce`.
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return values.abs() if values.is_complex() else values


def _group_by_dtype(gradients: Iterable[Tensor]) -> list[list[int]]:
    """Return the indices of the gradients, grouped by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, gradient in enumerate(gradients):
        groups.setdefault((gradient.device, gradient.dtype), []).append(i)
    return list(groups.values())


def _compute_norms(groups: Sequence[list[Tensor]], scale: Tensor | None) -> Tensor:
    """Return the norms of all groups, of shape (number of gradients, 3), on the device of the first gradient."""
    device = groups[0][0].device
    norms = torch.cat([_to_device(device, _compute_group_norms(group)) for group in groups])
    return norms if scale is None else norms / _to_device(device, scale)


def _to_device(device: torch.device, value: Tensor) -> Tensor:
    """Return the tensor on a device; the parameters of a model can be on multiple devices."""
    return value if value.device == device else value.to(device)


def _compute_group_norms(gradients: list[Tensor]) -> Tensor:
    """Return the norms of order 1, infinity and 2, of shape (number of gradients, 3), in at least float32."""
    # With `_foreach_norm` (torch 2.13) the number of kernels does not depend on the number of parameters. One call per
    # order: torch has no call for multiple orders, and computing the absolute values of all gradients first would need
    # as much memory as the gradients.
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    columns = [torch.stack(torch._foreach_norm(gradients, order, wide)) for order in (1, math.inf, 2)]
    return torch.stack(columns, dim=1)


T = TypeVar("T")


def match_targets(parameters: Iterable[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Select the parameters that match targets.

    Args:
        parameters: Full names, such as `backbone.0.weight`.
        targets: Full names of parameters or modules, or patterns of full names with `*`, `?` and `[...]`; `*` also
            matches dots. A module selects all of its parameters; an empty sequence selects all parameters.

    Returns:
        The selected parameters in their original order, and the targets that match no parameter.
    """
    names = list(parameters)
    if not targets:
        return names, []
    matches = {target: {name for name in names if _matches(target, name)} for target in targets}
    selected = set().union(*matches.values())
    return [name for name in names if name in selected], [target for target in targets if not matches[target]]


def select_parameters(parameters: Mapping[str, T], targets: Sequence[str]) -> dict[str, T]:
    """Return the parameters that match targets, as in `match_targets`.

    A shared parameter has multiple names and is returned once, by the first of its names that matches.
    """
    names, _ = match_targets(parameters, targets)
    first = {id(parameters[name]): name for name in reversed(names)}
    return {name: parameters[name] for name in names if first[id(parameters[name])] == name}


def list_paths(parameters: Iterable[str]) -> list[str]:
    """Return the paths of all modules and parameters: `backbone`, `backbone.0`, `backbone.0.weight`, ..."""
    return list(dict.fromkeys(path for name in parameters for path in _get_prefixes(name)))


def _matches(target: str, name: str) -> bool:
    return any(fnmatchcase(path, target) for path in _get_prefixes(name))


def _get_prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
