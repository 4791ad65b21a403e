"""Measuring gradients: per parameter the mean and the largest absolute value, and the L2 norm.

Everything is computed on the device of the gradients; `Reading.take` copies it to the host, once for all parameters.
Usable without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Gradient", "Reading", "measure", "scale_of"]


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one parameter.

    Attributes:
        name: the parameter.
        mean: the mean of the absolute values.
        max: the largest absolute value.
        l2: the square root of the sum of the squares.
    """

    name: str
    mean: float
    max: float
    l2: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured, still on the device.

    Attributes:
        names: the parameters that have a gradient.
        missing: those that require one and have none.
        sizes: the number of elements of each of `names`.
        order: the place in `names` of each row of `numbers`.
        numbers: of shape (number of names, 3): the sum and the largest of the absolute values, and the L2 norm; None
            without names.
    """

    names: list[str]
    missing: list[str]
    sizes: list[int]
    order: list[int]
    numbers: Tensor | None

    def take(self) -> list[Gradient]:
        """Copy the numbers to the host. Waits for the device."""
        rows = dict(zip(self.order, [] if self.numbers is None else self.numbers.tolist(), strict=True))
        return [
            Gradient(name, rows[i][0] / size, rows[i][1], rows[i][2])
            for i, (name, size) in enumerate(zip(self.names, self.sizes, strict=True))
        ]


@torch.no_grad()
def measure(parameters: Mapping[str, Tensor], scale: Tensor | None = None) -> Reading:
    """Measure the gradients that are there. Does not wait for the device.

    Args:
        parameters: by name; those without elements, or that require no gradient, are left out.
        scale: a single number by which the gradients were multiplied; None where they were not.
    """
    wanted = {name: each for name, each in parameters.items() if each.requires_grad and each.numel()}
    there = {name: _dense(each.grad) for name, each in wanted.items() if each.grad is not None}
    missing = [name for name in wanted if name not in there]
    sizes = [wanted[name].numel() for name in there]
    gradients, groups = list(there.values()), _by_kind(there.values())
    numbers = _numbers([[gradients[i] for i in group] for group in groups], scale) if groups else None
    return Reading(list(there), missing, sizes, [i for group in groups for i in group], numbers)


def scale_of(scaler: Any, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """By what a gradient scaler multiplies, without reading it; None for nothing.

    Args:
        scaler: a `torch.amp.GradScaler`, or None.
        parameters: those whose gradients it multiplies; the number is on the device of the first.
    """
    if scaler is None or not scaler.is_enabled() or not parameters:
        return None
    scaled: Tensor = scaler.scale(torch.ones((), device=next(iter(parameters.values())).device))
    return scaled


def _dense(gradient: Tensor) -> Tensor:
    """Real numbers with the same absolute values, without those of a sparse gradient that are not there."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return values.abs() if values.is_complex() else values


def _by_kind(gradients: Iterable[Tensor]) -> list[list[int]]:
    """The places of those of one device and type, which can be measured together."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, each in enumerate(gradients):
        groups.setdefault((each.device, each.dtype), []).append(i)
    return list(groups.values())


def _numbers(groups: Sequence[list[Tensor]], scale: Tensor | None) -> Tensor:
    """Of shape (number of gradients, 3), on the device of the first."""
    device = groups[0][0].device
    numbers = torch.cat([_on(device, _of_group(group)) for group in groups])
    return numbers if scale is None else numbers / _on(device, scale)


def _on(device: torch.device, value: Tensor) -> Tensor:
    """The same on a device: a model may lie on several."""
    return value if value.device == device else value.to(device)


def _of_group(gradients: list[Tensor]) -> Tensor:
    """Of shape (number of gradients, 3): the norms of order 1, infinity and 2; 16 bits are added up in 32.

    A call for each order: torch has none for several, and to begin with the absolute values of all gradients would take
    as much memory as they do.
    """
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    columns = [torch.stack(torch._foreach_norm(gradients, order, wide)) for order in (1, math.inf, 2)]
    return torch.stack(columns, dim=1)
