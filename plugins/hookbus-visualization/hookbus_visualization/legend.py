"""Legend of class colors. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from hookbus_visualization.grid import ellipsize, get_font
from hookbus_visualization.palette import class_color, class_name
from hookbus_visualization.panel import BACKGROUND_COLOR, TEXT_COLOR, Color, RGBImage

__all__ = ["draw_legend"]

LINE_HEIGHT_PIXELS, SWATCH_PIXELS, GAP_PIXELS = 18, 12, 8
MAX_CLASSES = 40
"""Maximum number of classes; the last entry shows the number of omitted classes."""


def draw_legend(
    classes: Iterable[int], width: int, names: Sequence[str] = (), palette: Sequence[Color] = ()
) -> RGBImage:
    """Draw a color swatch and the name of each class, in lines of a given width.

    Args:
        classes: Class indices; each distinct class has one entry, in ascending order.
        width: Width of the image in pixels; longer names are truncated.
        names: Names of the classes, by class index. A class without a name is shown as its index.
        palette: Colors of the first classes. Other classes have the default colors.

    Returns:
        The pixels, (H, `width`, 3), uint8. H is 0 if there are no classes.
    """
    ids = sorted(set(classes))
    entries = [(class_name(class_id, names), class_color(class_id, palette)) for class_id in ids[:MAX_CLASSES]]
    if len(ids) > MAX_CLASSES:
        # A swatch in the color of the background is invisible.
        entries.append((f"and {len(ids) - MAX_CLASSES} more", BACKGROUND_COLOR))
    font, text_width = get_font(), width - SWATCH_PIXELS - 2 * GAP_PIXELS
    texts = [ellipsize(name, text_width) for name, _ in entries]
    positions, lines = _place_entries(
        [SWATCH_PIXELS + 2 * GAP_PIXELS + round(font.getlength(text)) for text in texts], width
    )
    sheet = Image.new("RGB", (width, lines * LINE_HEIGHT_PIXELS), BACKGROUND_COLOR)
    draw = ImageDraw.Draw(sheet)
    for (x, line), text, (_, color) in zip(positions, texts, entries, strict=True):
        top = line * LINE_HEIGHT_PIXELS + (LINE_HEIGHT_PIXELS - SWATCH_PIXELS) // 2
        draw.rectangle((x, top, x + SWATCH_PIXELS - 1, top + SWATCH_PIXELS - 1), color)
        draw.text(
            (x + SWATCH_PIXELS + GAP_PIXELS // 2, line * LINE_HEIGHT_PIXELS + LINE_HEIGHT_PIXELS // 2),
            text,
            TEXT_COLOR,
            font,
            anchor="lm",
        )
    return np.array(sheet)


def _place_entries(widths: Iterable[int], limit: int) -> tuple[list[tuple[int, int]], int]:
    """Return the positions of entries in lines with a maximum width, as (x, line), and the number of lines."""
    positions: list[tuple[int, int]] = []
    x, line = 0, 0
    for width in widths:
        # The first entry of a line is placed there even if it is too wide.
        if x and x + width > limit:
            x, line = 0, line + 1
        positions.append((x, line))
        x += width
    return positions, line + 1 if positions else 0
