"""Conversion of images and of maps of values to 8-bit RGB. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.panel import RGBImage, resize_to_fit

CHANNELS = (1, 3, 4)
COLOR_STOPS = np.array([(8, 8, 40), (60, 20, 120), (150, 35, 120), (225, 75, 70), (250, 160, 50), (255, 250, 190)])
"""Colors of equally spaced values from 0 to 1, from dark blue to pale yellow.

The luminance increases strictly, so the order of values is visible in grayscale and with color blindness.
"""


def to_pixels(
    image: Any,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    value_range: tuple[float, float] | None = None,
) -> RGBImage:
    """Convert an image to RGB pixels.

    Args:
        image: Tensor, NumPy array or PIL image of shape (H, W), (C, H, W) or (H, W, C) with 1 (gray), 3 (RGB) or 4
            channels (RGBA, composited on white). If both the first and the last dimension may be channels, the first
            dimension is used.
        mean: Mean that was subtracted from a float image, one number or one per channel; added after `std`.
        std: Standard deviation that a float image was divided by, one number or one per channel; multiplied again.
        value_range: Values of black and white in a float image; values outside the range are clipped. Default: 0 and
            1, or the minimum and maximum of an image with values outside that range.

    Returns:
        The pixels, (H, W, 3), uint8. Integers are clipped to 0 to 255, booleans become black and white, NaN becomes
        black.

    Raises:
        ValueError: If the image has another shape, or no pixels.
    """
    pixels = _to_channels_last(to_array(image))
    if pixels.dtype.kind == "f":
        report_anomaly("values of images are NaN or infinite", "NaN is drawn in black.", ~np.isfinite(pixels))
        scale, shift = np.asarray(std or 1, pixels.dtype), np.asarray(mean or 0, pixels.dtype)
        with np.errstate(over="ignore"):  # an overflow becomes infinity, which is rendered as white
            pixels = _to_levels(pixels * scale + shift, value_range)
    elif pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    return _to_rgb(np.clip(pixels, 0, 255).astype(np.uint8))


def is_image(value: Any) -> bool:
    """Return whether a value has the shape of one non-empty image, channels first or last."""
    shape = tuple(getattr(value, "shape", ()))
    has_channels = len(shape) == 2 or (len(shape) == 3 and (shape[0] in CHANNELS or shape[2] in CHANNELS))
    return has_channels and min(shape) > 0


def to_array(value: Any) -> NDArray[Any]:
    """Convert a tensor on any device and of any precision, a list or a PIL image to a NumPy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        value = (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def _to_channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return an image as (H, W, C)."""
    if not is_image(array):
        raise ValueError(
            f"image must have shape (H, W), (C, H, W) or (H, W, C) with 1, 3 or 4 channels, got {tuple(array.shape)}"
        )
    if array.ndim == 2:
        return array[..., None]
    return np.moveaxis(array, 0, 2) if array.shape[0] in CHANNELS else array


def _to_levels(pixels: NDArray[Any], value_range: tuple[float, float] | None) -> NDArray[Any]:
    finite = pixels[np.isfinite(pixels)]
    low, high = value_range or _get_value_range(finite)
    values = np.nan_to_num(pixels, nan=low, posinf=high, neginf=low)
    # Halved before the subtraction: the difference of the extremes of a float type overflows.
    # In the type of the pixels, in which the half of a subnormal range may underflow to 0.
    span = pixels.dtype.type(high / 2 - low / 2)
    scaled = (values / 2 - low / 2) / (span or 1.0)
    levels: NDArray[Any] = np.rint(np.clip(scaled, 0, 1) * 255)
    return levels


def _get_value_range(finite: NDArray[Any]) -> tuple[float, float]:
    # The range of an image within [0, 1] is not stretched, so that a dark image stays dark.
    if not finite.size or (finite.min() >= 0 and finite.max() <= 1):
        return 0.0, 1.0
    return float(finite.min()), float(finite.max())


def _to_rgb(pixels: RGBImage) -> RGBImage:
    channels = pixels.shape[2]
    if channels == 4:
        opacity = pixels[..., 3:] / 255
        return np.rint(pixels[..., :3] * opacity + 255 * (1 - opacity)).astype(np.uint8)
    # broadcast_to returns a view with a stride of 0; consumers of the pixels may require contiguous memory.
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def normalize(values: Any) -> NDArray[np.float32]:
    """Normalize values to the range from 0 to 1.

    Args:
        values: Numbers of any shape. NaN is replaced by the minimum, infinities by the minimum and the maximum.

    Returns:
        `(v - min) / (max - min)` with the finite minimum and maximum, float32, of the same shape. Zeros if all finite
        values are equal.
    """
    # In float64, in which the difference of two float32 extremes does not overflow.
    numbers = np.asarray(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    consequence = "NaN is drawn as the minimum, infinities as the minimum and maximum."
    report_anomaly("values of maps are NaN or infinite", consequence, ~np.isfinite(numbers))
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low == high:
        return np.zeros(numbers.shape, np.float32)
    clipped = np.clip(np.nan_to_num(numbers, nan=low, posinf=high, neginf=low), low, high)
    return np.asarray((clipped - low) / (high - low), np.float32)


def apply_colormap(values: Any) -> RGBImage:
    """Return the colors, (H, W, 3), uint8, of values from 0 to 1, (H, W); other values are clipped."""
    positions = np.linspace(0.0, 1.0, len(COLOR_STOPS))
    channels = [np.interp(values, positions, COLOR_STOPS[:, channel]) for channel in range(3)]
    return np.asarray(np.rint(np.stack(channels, axis=-1)), np.uint8)


def overlay_heatmap(image: RGBImage, values: Any) -> RGBImage:
    """Return the mean of an image, (H, W, 3), and of the heatmap of values from 0 to 1, (h, w).

    The values are resized to the size of the image with bilinear interpolation.
    """
    # Values are interpolated, not colors: mixed colors are not on the colormap.
    size, heatmap = (image.shape[1], image.shape[0]), Image.fromarray(np.asarray(values, np.float32))
    colors = apply_colormap(np.asarray(heatmap.resize(size, Image.Resampling.BILINEAR)))
    return np.asarray(np.rint(0.5 * image + 0.5 * colors), np.uint8)


def overlay_maps(images: Sequence[RGBImage], maps: Tensor) -> list[RGBImage]:
    """Overlay images with heatmaps, (N, h, w), normalized per image; small images are enlarged."""
    return [
        overlay_heatmap(resize_to_fit(image), normalize(values))
        for image, values in zip(images, maps.numpy(), strict=True)
    ]
