"""Panels: pixels with a caption and a frame. Independent of hookbus."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["INK", "PAPER", "RIGHT", "WRONG", "Colour", "Panel", "Picture"]

Picture = NDArray[np.uint8]
"""RGB pixels, (H, W, 3), uint8."""

Colour = tuple[int, int, int]
"""Red, green and blue, each from 0 to 255."""

PAPER: Colour = (255, 255, 255)
INK: Colour = (40, 40, 40)
# Blue and orange instead of green and red, which look alike with the most common forms of color blindness.
RIGHT: Colour = (0, 114, 178)
WRONG: Colour = (213, 94, 0)


class Panel(NamedTuple):
    """One image of a record.

    Attributes:
        picture: Pixels, (H, W, 3), uint8.
        caption: Text below the image; "" for none.
        frame: Color of the frame around the image; None for no frame.
    """

    picture: Picture
    caption: str = ""
    frame: Colour | None = None
