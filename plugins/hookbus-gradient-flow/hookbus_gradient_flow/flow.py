"""Measuring gradients: per parameter the mean and the largest absolute value, and the L2 norm.

Everything is computed on the device of the gradients; `Reading.take` copies it to the host, once for all parameters.
Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Gradient", "Reading", "measure"]


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
        numbers: of shape (number of names, 3): the sum and the largest of the absolute values, and the L2 norm; None
            without names.
    """

    names: list[str]
    missing: list[str]
    sizes: list[int]
    numbers: Tensor | None

    def take(self) -> list[Gradient]:
        """Copy the numbers to the host. Waits for the device."""
        rows = [] if self.numbers is None else self.numbers.tolist()
        return [
            Gradient(name, total / size, peak, norm)
            for name, size, (total, peak, norm) in zip(self.names, self.sizes, rows, strict=True)
        ]


@torch.no_grad()
def measure(parameters: Mapping[str, Tensor], scale: Tensor | None = None) -> Reading:
    """Measure the gradients that are there. Does not wait for the device.

    Args:
        parameters: by name; those without elements, or that require no gradient, are left out.
        scale: a single number by which the gradients were multiplied; None where they were not.
    """
    wanted = {name: each for name, each in parameters.items() if each.requires_grad and each.numel()}
    there = {name: each.grad for name, each in wanted.items() if each.grad is not None}
    missing = [name for name in wanted if name not in there]
    sizes = [wanted[name].numel() for name in there]
    return Reading(list(there), missing, sizes, _numbers(list(there.values()), scale) if there else None)


def _numbers(gradients: Sequence[Tensor], scale: Tensor | None) -> Tensor:
    """Of shape (number of gradients, 3), on the device of the first."""
    device = gradients[0].device
    numbers = torch.stack([_on(device, _of_one(each)) for each in gradients])
    return numbers if scale is None else numbers / _on(device, scale)


def _on(device: torch.device, value: Tensor) -> Tensor:
    """The same on a device: a model may lie on several."""
    return value if value.device == device else value.to(device)


def _of_one(gradient: Tensor) -> Tensor:
    """The sum and the largest of the absolute values, and the L2 norm; those of 16 bits are added up in 32."""
    sizes = (gradient.coalesce().values() if gradient.is_sparse else gradient).abs()
    wide = torch.promote_types(sizes.dtype, torch.float32)
    norm = torch.linalg.vector_norm(sizes, dtype=wide)
    return torch.stack([sizes.sum(dtype=wide), sizes.amax().to(wide), norm])
