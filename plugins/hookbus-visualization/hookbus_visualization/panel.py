"""What is drawn: pixels with a line of text. Usable without hookbus."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["INK", "PAPER", "RIGHT", "WRONG", "Colour", "Panel", "Picture"]

Picture = NDArray[np.uint8]
"""Pixels of shape (H, W, 3), red, green, blue, each from 0 to 255."""

Colour = tuple[int, int, int]
"""Red, green, blue, each from 0 to 255."""

PAPER: Colour = (255, 255, 255)
INK: Colour = (40, 40, 40)
RIGHT: Colour = (0, 114, 178)
WRONG: Colour = (213, 94, 0)
"""Blue and orange: colour-blind people tell them apart as well."""


class Panel(NamedTuple):
    """One picture among several.

    Attributes:
        picture: the pixels, (H, W, 3), uint8.
        caption: stands below; "" for none.
        frame: the colour of a frame around it; None for none.
    """

    picture: Picture
    caption: str = ""
    frame: Colour | None = None
