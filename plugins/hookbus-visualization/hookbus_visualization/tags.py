"""Text labels at boxes. Independent of hookbus."""

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
"""Maximum number of tags; more would cover the image."""
SMALLEST, LARGEST, PER_PICTURE = 10, 24, 30
"""Bounds of the font size in pixels, and the number of text lines that would fill an image."""
PAD = 2


def draw_tags(
    image: Picture,
    boxes: NDArray[np.float64],
    texts: Sequence[str],
    colors: NDArray[np.uint8],
    *,
    text_color: Colour | None = None,
    truth: bool = False,
) -> Picture:
    """Draw a text at each box, the last one on top.

    A tag of a prediction has the color of its box as background and is above the box. A tag of the ground truth has the
    color of its box as text color and is below the box, so that the two are distinguishable without colors. Tags are
    always inside the image.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        boxes: Corners, (N, 4), xyxy in pixels. Boxes outside the image have no tag. If more than 200 boxes have a tag,
            only the last 200 tags are drawn.
        texts: One text per box; an empty text has no tag.
        colors: Color of each box, (N, 3), uint8.
        text_color: Color of all texts. Default: the color of the box, or black or white by contrast.
        truth: Whether the boxes are the ground truth.

    Returns:
        A new image, (H, W, 3), uint8.
    """
    indices = [i for i in np.flatnonzero(visible(boxes, image.shape[:2])).tolist() if texts[i]][-MOST:]
    if not indices:
        return image.copy()
    canvas = Image.fromarray(image)
    draw, font = ImageDraw.Draw(canvas), text_font(_height(image.shape[:2]))
    for i in indices:
        background, ink = _inks(tuple(colors[i].tolist()), text_color, truth)
        rectangle = _place(boxes[i], draw.textbbox((0, 0), texts[i], font), canvas.size, truth)
        draw.rectangle(rectangle, background)
        draw.text((rectangle[0] + PAD, rectangle[1] + PAD), texts[i], ink, font)
    # asarray returns a read-only view of a PIL image.
    return np.asarray(canvas).copy()


def _height(size: Sequence[int]) -> int:
    return min(max(min(size) // PER_PICTURE, SMALLEST), LARGEST)


def _inks(color: Colour, text_color: Colour | None, truth: bool) -> tuple[Colour, Colour]:
    """Return the colors of the background and of the text."""
    if truth:
        ink = text_color or color
        return contrast_to(ink), ink
    return color, text_color or contrast_to(color)


def _place(
    box: NDArray[np.float64], text: tuple[float, ...], size: tuple[int, int], below: bool
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a tag: outside the box if it fits into the image, otherwise inside it."""
    width, height = round(text[2]) + 2 * PAD, round(text[3]) + 2 * PAD
    # Clipped first: the corners of a box may be infinite, which `round` cannot convert.
    left, top, _, bottom = (round(coordinate) for coordinate in np.clip(box, 0, [*size, *size]))
    if below:
        top = bottom if bottom + height < size[1] else bottom - height
    else:
        top = top - height if top >= height else top
    x, y = (
        max(0, min(start, limit - extent))
        for start, limit, extent in zip((left, top), size, (width, height), strict=True)
    )
    return x, y, x + width - 1, y + height - 1
