"""What of a training is recorded on request: arguments of the model, pictures, values of large tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["arguments_of", "pictures_in", "thinned"]

MOST_VALUES = 1 << 16

CHANNELS = (1, 3, 4)


def arguments_of(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with: all of a batch but the targets, which are last; a mapping by name.

    Args:
        batch: a tensor, (inputs, ..., targets), or a mapping.

    Returns:
        Positional and named arguments.
    """
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch[:-1] if len(batch) > 1 else batch), {}
    return (batch,), {}


def pictures_in(batch: Any, count: int) -> list[Tensor]:
    """The first pictures of a batch, spread from 0 to 1 where their numbers lie outside. Does not wait for the device.

    Args:
        batch: a tensor, or a sequence or mapping of them; the first of shape (N, C, H, W) or (N, H, W, C) counts.
        count: at most so many.

    Returns:
        (C, H, W) or (H, W, C) each; nothing where no tensor has such a shape.
    """
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    found = next((each for each in parts if _holds_pictures(each)), None)
    return [] if found is None else list(_spread(found.detach()[:count]))


def thinned(tensor: Tensor) -> Tensor:
    """At most 65,536 values of a tensor, evenly spaced: a distribution needs no more."""
    flat = tensor.detach().reshape(-1)
    return flat[:: 1 + (flat.numel() - 1) // MOST_VALUES] if flat.numel() else flat


def _holds_pictures(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 4 and (value.shape[1] in CHANNELS or value.shape[3] in CHANNELS)


def _spread(pictures: Tensor) -> Tensor:
    """Normalized inputs lie around 0; what lies between 0 and 1 already stays."""
    if not pictures.is_floating_point():
        return pictures
    low, high = pictures.amin().clamp(max=0), pictures.amax().clamp(min=1)
    return (pictures - low) / (high - low)
