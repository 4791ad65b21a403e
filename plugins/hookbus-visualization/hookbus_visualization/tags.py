"""Text labels at boxes. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hookbus_visualization.boxes import get_visible_mask
from hookbus_visualization.grid import get_font
from hookbus_visualization.palette import contrast_color
from hookbus_visualization.panel import Color, RGBImage

__all__ = ["draw_tags"]

MAX_TAGS = 200
"""Maximum number of tags; more would cover the image."""
MIN_FONT_SIZE_PIXELS, MAX_FONT_SIZE_PIXELS, LINES_PER_IMAGE = 10, 24, 30
"""Bounds of the font size in pixels, and the number of text lines that would fill an image."""
PADDING_PIXELS = 2


def draw_tags(
    image: RGBImage,
    boxes: NDArray[np.float64],
    texts: Sequence[str],
    colors: NDArray[np.uint8],
    *,
    text_color: Color | None = None,
    truth: bool = False,
) -> RGBImage:
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
    indices = [i for i in np.flatnonzero(get_visible_mask(boxes, image.shape[:2])).tolist() if texts[i]][-MAX_TAGS:]
    if not indices:
        return image.copy()
    canvas = Image.fromarray(image)
    draw, font = ImageDraw.Draw(canvas), get_font(_get_font_size(image.shape[:2]))
    for i in indices:
        background, ink = _get_tag_colors(tuple(colors[i].tolist()), text_color, truth)
        rectangle = _place_tag(boxes[i], draw.textbbox((0, 0), texts[i], font), canvas.size, truth)
        draw.rectangle(rectangle, background)
        draw.text((rectangle[0] + PADDING_PIXELS, rectangle[1] + PADDING_PIXELS), texts[i], ink, font)
    # asarray returns a read-only view of a PIL image.
    return np.asarray(canvas).copy()


def _get_font_size(size: Sequence[int]) -> int:
    return min(max(min(size) // LINES_PER_IMAGE, MIN_FONT_SIZE_PIXELS), MAX_FONT_SIZE_PIXELS)


def _get_tag_colors(color: Color, text_color: Color | None, truth: bool) -> tuple[Color, Color]:
    """Return the colors of the background and of the text."""
    if truth:
        ink = text_color or color
        return contrast_color(ink), ink
    return color, text_color or contrast_color(color)


def _place_tag(
    box: NDArray[np.float64], text: tuple[float, ...], size: tuple[int, int], below: bool
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a tag: outside the box if it fits into the image, otherwise inside it."""
    width, height = round(text[2]) + 2 * PADDING_PIXELS, round(text[3]) + 2 * PADDING_PIXELS
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
