"""Layout of panels with Pillow: a grid of images, each with its caption below. Independent of hookbus."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookbus_visualization.panel import INK, PAPER, Panel, Picture

__all__ = ["beside", "fitted", "grid", "layout", "shortened", "text_font"]

LEAST, MOST = 120, 320
"""Bounds of the longer side of an image in pixels: smaller images are enlarged, larger images are downsampled."""

WIDTH = 1600
"""Approximate width of a row in pixels. Images in a row with few columns may be larger than `MOST`."""

GAP, FRAME, TEXT, LINE = 12, 4, 12, 16
WIDEST = 190
"""Maximum width in pixels that a caption adds to its column; a longer caption is truncated."""

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont | ImageFont.TransposedFont


@functools.cache
def text_font(size: float = TEXT) -> Font:
    """Return the font that is bundled with Pillow, which is available on every system."""
    return ImageFont.load_default(size)


def grid(panels: Sequence[Panel], title: str = "", columns: int | None = None) -> Picture:
    """Render panels side by side.

    Args:
        panels: At least one panel. Small images are enlarged by an integer factor, large images are downsampled.
        title: Text above the panels.
        columns: Number of columns. Default: the number that makes the result approximately square.

    Returns:
        The pixels, (H, W, 3), uint8.
    """
    columns, most = layout([panel.picture for panel in panels], columns)
    images = [fitted(panel.picture, most=most) for panel in panels]
    width, heights = _cells(panels, images, columns)
    head = LINE + GAP if title else 0
    sheet = Image.new("RGB", (columns * width + GAP, head + sum(heights) + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((GAP, GAP), shortened(title, sheet.width - 2 * GAP), INK, text_font())
    for i, (panel, image) in enumerate(zip(panels, images, strict=True)):
        row, column = divmod(i, columns)
        _place(sheet, draw, panel, image, (GAP + column * width, head + GAP + sum(heights[:row])), width - GAP)
    return np.array(sheet)


def layout(images: Sequence[Picture], columns: int | None = None) -> tuple[int, int]:
    """Compute the layout of a grid of images.

    Args:
        images: At least one image, of any size.
        columns: Number of columns. Default: the number that makes the grid approximately square.

    Returns:
        The number of columns, and the maximum of the longer side of an image in pixels.
    """
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    # n images of size (h, w) in c columns form a square if c * w == n / c * h.
    columns = min(columns or math.ceil(math.sqrt(len(images) * height / width)), len(images))
    return columns, max(MOST, WIDTH // columns)


def _cells(panels: Sequence[Panel], images: Sequence[Picture], columns: int) -> tuple[int, list[int]]:
    """Return the width of the columns and the height of each row, for the largest image and the longest caption."""
    captions = [panel.caption.splitlines() for panel in panels]
    # No character is narrower than a pixel, so WIDEST characters are enough to measure the width up to WIDEST.
    text = max((math.ceil(text_font().getlength(line[:WIDEST])) for lines in captions for line in lines), default=0)
    width = max(min(text, WIDEST), *(image.shape[1] for image in images))
    heights = [image.shape[0] + LINE * len(lines) + GAP for image, lines in zip(images, captions, strict=True)]
    return width + GAP, [max(heights[i : i + columns]) for i in range(0, len(heights), columns)]


def beside(images: Sequence[Picture]) -> Picture:
    """Stack images horizontally, each resized by `fitted`, with a white gap between them.

    Args:
        images: At least one image, (H, W, 3), uint8.

    Returns:
        The pixels, (H, W, 3), uint8, with the height of the highest image.
    """
    images = [fitted(image) for image in images]
    height, width = max(image.shape[0] for image in images), sum(image.shape[1] + FRAME for image in images) - FRAME
    row = np.full((height, width, 3), 255, np.uint8)
    left = 0
    for image in images:
        row[: image.shape[0], left : left + image.shape[1]] = image
        left += image.shape[1] + FRAME
    return row


def fitted(image: Picture, least: int = LEAST, most: int = MOST) -> Picture:
    """Resize an image to a readable size.

    Args:
        image: Pixels, (H, W, 3), uint8.
        least: Minimum of the longer side in pixels, if an integer factor reaches it without exceeding `most`.
        most: Maximum of the longer side in pixels.

    Returns:
        The resized pixels, (H, W, 3), uint8. The aspect ratio is unchanged.
    """
    height, width = image.shape[:2]
    longer = max(height, width)
    if longer > most:
        # An image of 1 x 1000 pixels keeps a side of at least one pixel.
        size = (max(1, round(width * most / longer)), max(1, round(height * most / longer)))
        return np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    # An integer factor keeps the original pixels visible: each becomes a square of one color.
    factor = max(1, min(math.ceil(least / longer), most // longer))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def shortened(text: str, width: float, font: Font | None = None) -> str:
    """Truncate a line with `…` to a width in pixels."""
    font = font or text_font()
    # No character is narrower than a pixel. Measuring a prefix bounds the cost for a caption of any length.
    if font.getlength(text[: int(width) + 1]) <= width:
        return text
    text = text[: int(width)]
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _place(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, panel: Panel, image: Picture, corner: tuple[int, int], width: int
) -> None:
    """Draw an image with its frame and its caption."""
    left, top = corner
    height = image.shape[0]
    if panel.frame is not None:
        box = (left - FRAME, top - FRAME, left + image.shape[1] + FRAME - 1, top + height + FRAME - 1)
        draw.rectangle(box, panel.frame)
    sheet.paste(Image.fromarray(image), corner)
    for i, line in enumerate(panel.caption.splitlines()):
        draw.text((left, top + height + FRAME + i * LINE), shortened(line, width), INK, text_font())
