"""Numbers as colours: a map of values between dark blue and pale yellow, alone or over a picture.

The colours become lighter from the smallest value to the largest, so that they keep their order in grey print and for
the colour-blind. NumPy and Pillow only; usable without hookbus.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hookbus_visualization.panel import Picture

__all__ = ["Floats", "coloured", "overlaid", "resized", "scaled"]

Floats = NDArray[np.float32]

STOPS = np.array([(8, 8, 40), (60, 20, 120), (150, 35, 120), (225, 75, 70), (250, 160, 50), (255, 250, 190)])
"""Colours from 0 to 1, at equal distances."""


def scaled(values: Any) -> Floats:
    """Stretch values to the range from 0 to 1.

    Args:
        values: numbers of any shape; NaN counts as the smallest, infinities as the smallest and the largest.

    Returns:
        The same shape, float32: `(v - min) / (max - min)` with the finite minimum and maximum. Zeros where all finite
        values are equal.
    """
    numbers = np.asarray(values, dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low == high:
        return np.zeros(numbers.shape, np.float32)
    inside = np.clip(np.nan_to_num(numbers, nan=low, posinf=high, neginf=low), low, high)
    return np.asarray((inside - low) / (high - low), np.float32)


def coloured(values: Any) -> Picture:
    """Give each value its colour.

    Args:
        values: from 0 to 1, of shape (height, width); what is outside is cut.

    Returns:
        (height, width, 3).
    """
    places = np.linspace(0.0, 1.0, len(STOPS))
    channels = [np.interp(values, places, STOPS[:, channel]) for channel in range(3)]
    return np.asarray(np.rint(np.stack(channels, axis=-1)), np.uint8)


def resized(values: Any, height: int, width: int) -> Floats:
    """Bring a map of values to another size, bilinearly.

    Args:
        values: of shape (height, width).
        height: the new one, in pixels.
        width: the new one, in pixels.
    """
    image = Image.fromarray(np.asarray(values, np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def overlaid(picture: Picture, values: Any, opacity: float = 0.5) -> Picture:
    """Lay a map of values over a picture.

    Args:
        picture: of shape (height, width, 3).
        values: from 0 to 1, of shape (rows, columns); they are brought to the size of the picture.
        opacity: of the colours; 0 shows the picture only, 1 the colours only.

    Returns:
        A new picture of the same shape: `(1 - opacity) * picture + opacity * colours`.
    """
    colours = coloured(resized(values, *picture.shape[:2]))
    return np.asarray(np.rint((1 - opacity) * picture + opacity * colours), np.uint8)
