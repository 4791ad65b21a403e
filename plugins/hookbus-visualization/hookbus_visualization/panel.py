"""Panels: pixels with a caption and a frame. Independent of hookbus."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RGBImage = NDArray[np.uint8]
"""RGB pixels, (H, W, 3), uint8."""

Color = tuple[int, int, int]
"""Red, green and blue, each from 0 to 255."""

BACKGROUND_COLOR: Color = (255, 255, 255)
TEXT_COLOR: Color = (40, 40, 40)
# Blue and orange instead of green and red, which look alike with the most common forms of color blindness.
CORRECT_COLOR: Color = (0, 114, 178)
INCORRECT_COLOR: Color = (213, 94, 0)


class Panel(NamedTuple):
    """One image of a record.

    Attributes:
        image: Pixels, (H, W, 3), uint8.
        caption: Text below the image; "" for none.
        frame: Color of the frame around the image; None for no frame.
    """

    image: RGBImage
    caption: str = ""
    frame: Color | None = None
