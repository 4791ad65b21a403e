"""Heatmaps: a sequential colormap from dark blue to pale yellow, and overlays. Independent of hookbus.

The luminance of the colormap increases strictly from the smallest to the largest value, so the order of values is
visible in grayscale and with color blindness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.panel import RGBImage, resize_to_fit

FloatArray = NDArray[np.float32]

COLOR_STOPS = np.array([(8, 8, 40), (60, 20, 120), (150, 35, 120), (225, 75, 70), (250, 160, 50), (255, 250, 190)])
"""Colors of equally spaced values from 0 to 1."""


def normalize(values: Any) -> FloatArray:
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
    report_anomaly("values of maps are NaN or infinite", consequence, numbers.size - finite.size, numbers.size)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low == high:
        return np.zeros(numbers.shape, np.float32)
    clipped = np.clip(np.nan_to_num(numbers, nan=low, posinf=high, neginf=low), low, high)
    return np.asarray((clipped - low) / (high - low), np.float32)


def apply_colormap(values: Any) -> RGBImage:
    """Apply the colormap to values.

    Args:
        values: Values from 0 to 1, (H, W); values outside the range are clipped.

    Returns:
        The pixels, (H, W, 3), uint8.
    """
    positions = np.linspace(0.0, 1.0, len(COLOR_STOPS))
    channels = [np.interp(values, positions, COLOR_STOPS[:, channel]) for channel in range(3)]
    return np.asarray(np.rint(np.stack(channels, axis=-1)), np.uint8)


def resize_map(values: Any, height: int, width: int) -> FloatArray:
    """Resize a map of values with bilinear interpolation.

    Args:
        values: Values, (h, w).
        height: Height of the result in pixels.
        width: Width of the result in pixels.

    Returns:
        The values, (`height`, `width`), float32.
    """
    image = Image.fromarray(np.asarray(values, np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def overlay_heatmap(image: RGBImage, values: Any) -> RGBImage:
    """Overlay an image with a half transparent heatmap.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        values: Values from 0 to 1, (h, w); resized to the size of the image.

    Returns:
        A new image, (H, W, 3), uint8: `(image + colors) / 2`.
    """
    # Values are interpolated, not colors: mixed colors are not on the colormap.
    colors = apply_colormap(resize_map(values, *image.shape[:2]))
    return np.asarray(np.rint(0.5 * image + 0.5 * colors), np.uint8)


def overlay_maps(images: Sequence[RGBImage], maps: Tensor) -> list[RGBImage]:
    """Overlay images with heatmaps, (N, h, w), normalized per image; small images are enlarged."""
    return [
        overlay_heatmap(resize_to_fit(image), normalize(values))
        for image, values in zip(images, maps.numpy(), strict=True)
    ]
