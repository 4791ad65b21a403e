"""What a class looks like: its colour and its name, by its id alone, so that both stay the same over a whole run.

The colours are the seven of Okabe and Ito that are not black ("Color Universal Design", 2008), which people tell apart
whatever kind of colour vision they have; classes from the eighth on have darker and lighter shades of them. Usable
without hookbus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import ImageColor

from hookbus_visualization.panel import Colour

__all__ = ["colour_of", "colours_of", "contrast_to", "name_of", "rgb"]

BASE: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
NO_CLASS: Colour = (128, 128, 128)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)
MIDDLE = 0.179
"""The luminance that has the same contrast to black and to white: 1.05 / (L + 0.05) == (L + 0.05) / 0.05."""


def colour_of(class_id: int, palette: Sequence[Colour] = ()) -> Colour:
    """The colour of a class.

    Args:
        class_id: from 0; what is below 0 is no class, and grey.
        palette: colours of the first classes. Classes behind its end have their usual colour.
    """
    if class_id < 0:
        return NO_CLASS
    if class_id < len(palette):
        return palette[class_id]
    level, hue = divmod(class_id, len(BASE))
    return _shaded(BASE[hue], _shade(level))


def colours_of(class_ids: NDArray[np.integer], palette: Sequence[Colour] = ()) -> NDArray[np.uint8]:
    """The colours of many classes.

    Args:
        class_ids: (N,), whole numbers.
        palette: see `colour_of`.

    Returns:
        (N, 3).
    """
    return np.array([colour_of(int(each), palette) for each in class_ids], dtype=np.uint8).reshape(-1, 3)


@lru_cache
def contrast_to(colour: Colour) -> Colour:
    """Black or white, whichever is easier to see beside a colour.

    The relative luminance is that of the Web Content Accessibility Guidelines 2.2.
    """
    red, green, blue = (_linear(value / 255) for value in colour)
    return BLACK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > MIDDLE else WHITE


def name_of(class_id: int, names: Sequence[str] = ()) -> str:
    """The name of a class; its number where it has none."""
    return names[class_id] if 0 <= class_id < len(names) else str(class_id)


def rgb(value: str | Sequence[int]) -> Colour:
    """A colour as people write it.

    Args:
        value: a name ("red"), a hexadecimal number ("#ff0000"), or red, green and blue from 0 to 255.

    Raises:
        ValueError: it is none of these.
    """
    try:
        red, green, blue = ImageColor.getrgb(value) if isinstance(value, str) else value
    except (TypeError, ValueError):
        raise ValueError(_no_colour(value)) from None
    if not all(isinstance(each, int) and 0 <= each <= 255 for each in (red, green, blue)):
        raise ValueError(_no_colour(value))
    return red, green, blue


def _no_colour(value: object) -> str:
    return f"{value!r} is no colour. Write a name like red, '#ff0000', or three numbers from 0 to 255."


def _shade(level: int) -> float:
    """Level 0 is the colour itself; later ones lie as far as possible from those before (van der Corput's sequence).

    Returns:
        From -0.5, half as bright, to 0.5, half way to white.
    """
    digits = f"{level:b}"[::-1]
    return (int(digits, 2) / (1 << len(digits)) + 0.5) % 1 - 0.5


def _shaded(colour: Colour, amount: float) -> Colour:
    goal = 255 if amount > 0 else 0
    red, green, blue = (round(value + (goal - value) * abs(amount)) for value in colour)
    return red, green, blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else math.pow((value + 0.055) / 1.055, 2.4)
