"""Several pictures on one sheet, each with its caption below. Drawn with Pillow; usable without hookbus."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookbus_visualization.panel import INK, PAPER, Panel, Picture

__all__ = ["fitted", "grid", "shortened", "text_font"]

LEAST, MOST = 120, 320
"""Pictures whose longer side has fewer pixels are enlarged, those with more are made smaller."""

GAP, FRAME, TEXT, LINE = 8, 4, 12, 16

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont | ImageFont.TransposedFont


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
    pictures = [fitted(panel.picture) for panel in panels]
    columns = min(columns or math.ceil(math.sqrt(len(panels))), len(panels))
    rows = math.ceil(len(panels) / columns)
    head = LINE + GAP if title else 0
    wide, high = max(each.shape[1] for each in pictures) + GAP, max(each.shape[0] for each in pictures) + GAP
    high += LINE * max(panel.caption.count("\n") + 1 if panel.caption else 0 for panel in panels)
    sheet = Image.new("RGB", (columns * wide + GAP, head + rows * high + GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((GAP, GAP), shortened(title, sheet.width - 2 * GAP), INK, text_font())
    for i, (panel, picture) in enumerate(zip(panels, pictures, strict=True)):
        _place(sheet, draw, panel, picture, (GAP + i % columns * wide, head + GAP + i // columns * high), wide - GAP)
    return np.array(sheet)


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
