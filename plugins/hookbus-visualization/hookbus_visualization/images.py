"""Images in one form, whatever form they come in: red, green and blue, 8 bits each. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.panel import Picture

__all__ = ["as_array", "is_image", "to_pixels"]

CHANNELS = (1, 3, 4)


def to_pixels(
    image: Any,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    value_range: tuple[float, float] | None = None,
) -> Picture:
    """The pixels of an image.

    Args:
        image: a tensor, a NumPy array or a PIL image of shape (H, W), (C, H, W) or (H, W, C) with 1 (grey), 3 (colours)
            or 4 channels (colours and opacity, put on white); where both ends could be channels, the first is taken.
        mean, std: what a float image was normalized by, one number or one per channel; it is multiplied by `std`, and
            `mean` is added.
        value_range: black and white of a float image. Default 0 and 1; an image that goes beyond is stretched so that
            its least value is black and its greatest white. What is outside of a given range is cut.

    Returns:
        (H, W, 3), uint8. Bytes stay as they are, truth values are black and white, NaN is black.

    Raises:
        ValueError: it has no such shape, or no pixels.
    """
    pixels = _arranged(as_array(image))
    if pixels.dtype.kind == "f":
        pixels = _in_bytes(_denormalized(pixels, mean, std), value_range)
    elif pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    return _rgb(np.clip(pixels, 0, 255).astype(np.uint8))


def is_image(value: Any) -> bool:
    """Whether a value has the shape of one image with pixels, channels first or last."""
    shape = tuple(getattr(value, "shape", ()))
    channels = len(shape) == 2 or (len(shape) == 3 and (shape[0] in CHANNELS or shape[2] in CHANNELS))
    return channels and min(shape) > 0


def as_array(value: Any) -> NDArray[Any]:
    """A tensor, wherever it is and of whatever precision, a list or a PIL image as an array of NumPy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _arranged(array: NDArray[Any]) -> NDArray[Any]:
    """Height by width by channels."""
    if not is_image(array):
        raise ValueError(
            f"an image has shape (H, W), (C, H, W) or (H, W, C) with 1, 3 or 4 channels, not {tuple(array.shape)}"
        )
    if array.ndim == 2:
        return array[..., None]
    return np.moveaxis(array, 0, 2) if array.shape[0] in CHANNELS else array


def _denormalized(pixels: NDArray[Any], mean: Sequence[float] | None, std: Sequence[float] | None) -> NDArray[Any]:
    scale, shift = np.asarray(std or 1, pixels.dtype), np.asarray(mean or 0, pixels.dtype)
    with np.errstate(over="ignore"):  # what becomes infinite is as white as can be
        denormalized: NDArray[Any] = pixels * scale + shift
    return denormalized


def _in_bytes(pixels: NDArray[Any], value_range: tuple[float, float] | None) -> NDArray[Any]:
    finite = pixels[np.isfinite(pixels)]
    low, high = value_range or _range_of(finite)
    inside = np.nan_to_num(pixels, nan=low, posinf=high, neginf=low)
    scaled = (inside / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)  # by halves: the whole range may exceed the type
    levels: NDArray[Any] = np.rint(np.clip(scaled, 0, 1) * 255)
    return levels


def _range_of(finite: NDArray[Any]) -> tuple[float, float]:
    if not finite.size or (finite.min() >= 0 and finite.max() <= 1):
        return 0.0, 1.0
    return float(finite.min()), float(finite.max())


def _rgb(pixels: Picture) -> Picture:
    channels = pixels.shape[2]
    if channels == 4:
        opacity = pixels[..., 3:] / 255
        return np.rint(pixels[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
