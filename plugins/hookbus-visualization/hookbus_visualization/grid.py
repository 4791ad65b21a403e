"""Several pictures on one sheet, each with its caption below. Drawn with Pillow; usable without hookbus."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookbus_visualization.panel import INK, PAPER, Panel, Picture

__all__ = ["beside", "fitted", "grid", "layout", "shortened", "text_font"]

LEAST, MOST = 120, 320
"""Pictures whose longer side has fewer pixels are enlarged, those with more are made smaller."""

WIDTH = 1600
"""About so many pixels share the pictures of a row: where there are few, they may be larger than `MOST`."""

GAP, FRAME, TEXT, LINE = 12, 4, 12, 16
WIDEST = 190
"""So wide a caption makes its column at most; a longer one is shortened."""

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont | ImageFont.TransposedFont


@functools.cache
def text_font(size: float = TEXT) -> Font:
    """Pillow's own font, which is there wherever Pillow is."""
    return ImageFont.load_default(size)


def grid(panels: Sequence[Panel], title: str = "", columns: int | None = None) -> Picture:
    """Put pictures side by side.

    Args:
        panels: at least one. Small pictures are enlarged by a whole factor, large ones made smaller.
        title: stands above.
        columns: how many stand in a row; default as many as make the sheet about square.

    Returns:
        (H, W, 3), uint8.
    """
    columns, most = layout([panel.picture for panel in panels], columns)
    pictures = [fitted(panel.picture, most=most) for panel in panels]
    wide, heights = _cells(panels, pictures, columns)
    head = LINE + GAP if title else 0
    sheet = Image.new("RGB", (columns * wide + GAP, head + sum(heights) + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((GAP, GAP), shortened(title, sheet.width - 2 * GAP), INK, text_font())
    for i, (panel, picture) in enumerate(zip(panels, pictures, strict=True)):
        row, column = divmod(i, columns)
        _place(sheet, draw, panel, picture, (GAP + column * wide, head + GAP + sum(heights[:row])), wide - GAP)
    return np.array(sheet)


def layout(pictures: Sequence[Picture], columns: int | None = None) -> tuple[int, int]:
    """How pictures are arranged on a sheet.

    Args:
        pictures: at least one, of any size.
        columns: how many stand in a row; default as many as make the sheet about square.

    Returns:
        How many stand in a row, and how many pixels the longer side of one may have.
    """
    high, wide = (max(each.shape[axis] for each in pictures) for axis in (0, 1))
    columns = min(columns or math.ceil(math.sqrt(len(pictures) * high / wide)), len(pictures))
    return columns, max(MOST, WIDTH // columns)


def _cells(panels: Sequence[Panel], pictures: Sequence[Picture], columns: int) -> tuple[int, list[int]]:
    """The width of the columns and the height of each row, for the largest picture and the longest caption."""
    lines = [panel.caption.splitlines() for panel in panels]
    text = max((math.ceil(text_font().getlength(line[:WIDEST])) for each in lines for line in each), default=0)
    wide = max(min(text, WIDEST), *(picture.shape[1] for picture in pictures))
    high = [picture.shape[0] + LINE * len(each) + GAP for picture, each in zip(pictures, lines, strict=True)]
    return wide + GAP, [max(high[i : i + columns]) for i in range(0, len(high), columns)]


def beside(pictures: Sequence[Picture]) -> Picture:
    """Pictures in a row, each fitted, with a gap in between: (H, W, 3), uint8, as high as the highest."""
    each = [fitted(picture) for picture in pictures]
    row = np.full((max(p.shape[0] for p in each), sum(p.shape[1] + FRAME for p in each) - FRAME, 3), 255, np.uint8)
    left = 0
    for picture in each:
        row[: picture.shape[0], left : left + picture.shape[1]] = picture
        left += picture.shape[1] + FRAME
    return row


def fitted(picture: Picture, least: int = LEAST, most: int = MOST) -> Picture:
    """A picture in a size that can be looked at: its pixels enlarged by a whole factor, or made smaller.

    Args:
        picture: (H, W, 3), uint8.
        least: of the longer side, if a whole factor leads there without going beyond `most`.
        most: of the longer side.
    """
    height, width = picture.shape[:2]
    longer = max(height, width)
    if longer > most:
        size = (max(1, round(width * most / longer)), max(1, round(height * most / longer)))
        return np.array(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    factor = max(1, min(math.ceil(least / longer), most // longer))
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def shortened(text: str, width: float, font: Font | None = None) -> str:
    """As much of the beginning of a line as there is place for, in pixels; `…` stands for the rest."""
    font = font or text_font()
    if font.getlength(text[: int(width) + 1]) <= width:
        return text
    text = text[: int(width)]  # no letter is narrower than a pixel
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _place(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, panel: Panel, picture: Picture, corner: tuple[int, int], width: int
) -> None:
    """One picture with its frame and its caption."""
    left, top = corner
    height = picture.shape[0]
    if panel.frame is not None:
        box = (left - FRAME, top - FRAME, left + picture.shape[1] + FRAME - 1, top + height + FRAME - 1)
        draw.rectangle(box, panel.frame)
    sheet.paste(Image.fromarray(picture), corner)
    for i, line in enumerate(panel.caption.splitlines()):
        place = (left, top + height + FRAME + i * LINE)
        draw.text(place, shortened(line, width), INK, text_font())
