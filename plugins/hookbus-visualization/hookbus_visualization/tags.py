"""Small texts beside boxes. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hookbus_visualization.boxes import visible
from hookbus_visualization.grid import text_font
from hookbus_visualization.palette import contrast_to
from hookbus_visualization.panel import Colour, Picture

__all__ = ["draw_tags"]

MOST = 200
"""So many tags at most: more would hide the picture."""
SMALLEST, LARGEST, PER_PICTURE = 10, 24, 30
"""Pixels of a letter's height; about so many lines would fill a picture."""
PAD = 2


def draw_tags(
    image: Picture,
    boxes: NDArray[np.float64],
    texts: Sequence[str],
    colours: NDArray[np.uint8],
    *,
    text_colour: Colour | None = None,
    truth: bool = False,
) -> Picture:
    """Write a text at each box, the last one on top.

    A tag has the colour of its box and stands above it. One of a truth has the box's colour as the colour of its text
    and stands below the box, so that the two can be told apart without colours. Tags stay within the picture.

    Args:
        image: (H, W, 3); it is not changed.
        boxes: (N, 4) xyxy in pixels. Boxes that cannot be seen have no tag, and where there are more than 200, only the
            last 200 have one.
        texts: N texts; an empty one makes no tag.
        colours: (N, 3).
        text_colour: of all texts; None is for one that can be read on the ground.
        truth: the boxes are a truth.

    Returns:
        A new picture.
    """
    shown = [i for i in np.flatnonzero(visible(boxes, image.shape[:2])).tolist() if texts[i]][-MOST:]
    if not shown:
        return image.copy()
    picture = Image.fromarray(image)
    draw, font = ImageDraw.Draw(picture), text_font(_height(image.shape[:2]))
    for i in shown:
        ground, ink = _inks(tuple(colours[i].tolist()), text_colour, truth)
        rectangle = _place(boxes[i], draw.textbbox((0, 0), texts[i], font), picture.size, truth)
        draw.rectangle(rectangle, ground)
        draw.text((rectangle[0] + PAD, rectangle[1] + PAD), texts[i], ink, font)
    return np.asarray(picture).copy()


def _height(size: Sequence[int]) -> int:
    return min(max(min(size) // PER_PICTURE, SMALLEST), LARGEST)


def _inks(colour: Colour, text_colour: Colour | None, truth: bool) -> tuple[Colour, Colour]:
    """The colours of the ground and of the text."""
    if truth:
        ink = text_colour or colour
        return contrast_to(ink), ink
    return colour, text_colour or contrast_to(colour)


def _place(
    box: NDArray[np.float64], text: tuple[float, ...], size: tuple[int, int], below: bool
) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a tag: outside the box where the picture has room, else inside it."""
    width, height = round(text[2]) + 2 * PAD, round(text[3]) + 2 * PAD
    left, top, _, bottom = (round(each) for each in np.clip(box, 0, [*size, *size]))
    if below:
        top = bottom if bottom + height < size[1] else bottom - height
    else:
        top = top - height if top >= height else top
    x, y = (
        max(0, min(at, limit - extent)) for at, limit, extent in zip((left, top), size, (width, height), strict=True)
    )
    return x, y, x + width - 1, y + height - 1
