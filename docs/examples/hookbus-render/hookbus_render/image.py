"""Rendering of weights as images, usable without hookbus."""

from __future__ import annotations

from torch import Tensor, uint8

__all__ = ["render_weight"]


def render_weight(weight: Tensor) -> Tensor:
    """Render a weight as a grayscale image: the minimum is black, the maximum white.

    Args:
        weight: Tensor of any shape; all dimensions after the first are flattened.

    Returns:
        Image of shape (height, width), uint8, on the CPU.
    """
    rows = weight.detach().reshape(weight.shape[0], -1).float().cpu()
    low, high = rows.aminmax()
    return ((rows - low) / (high - low).clamp(min=1e-12) * 255).round().to(uint8)
