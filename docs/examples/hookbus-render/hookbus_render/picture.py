"""A weight as a picture. Usable without hookbus."""

from __future__ import annotations

from torch import Tensor, uint8

__all__ = ["picture_of"]


def picture_of(weight: Tensor) -> Tensor:
    """A weight in grey: its smallest value black, its largest white.

    Args:
        weight: of any shape; dimensions after the first are laid side by side.

    Returns:
        (height, width), uint8, on the CPU.
    """
    rows = weight.detach().reshape(weight.shape[0], -1).float().cpu()
    low, high = rows.aminmax()
    return ((rows - low) / (high - low).clamp(min=1e-12) * 255).round().to(uint8)
