"""Legend of class colors. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from hookbus_visualization.grid import shortened, text_font
from hookbus_visualization.palette import colour_of, name_of
from hookbus_visualization.panel import INK, PAPER, Colour, Picture

__all__ = ["draw_legend"]

LINE, SWATCH, GAP = 18, 12, 8
MOST = 40
"""Maximum number of classes; the last entry shows the number of omitted classes."""


def draw_legend(
    classes: Iterable[int], width: int, names: Sequence[str] = (), palette: Sequence[Colour] = ()
) -> Picture:
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
    entries = [(name_of(class_id, names), colour_of(class_id, palette)) for class_id in ids[:MOST]]
    if len(ids) > MOST:
        # A swatch in the color of the background is invisible.
        entries.append((f"and {len(ids) - MOST} more", PAPER))
    font, text_width = text_font(), width - SWATCH - 2 * GAP
    texts = [shortened(name, text_width) for name, _ in entries]
    positions, lines = _flow([SWATCH + 2 * GAP + round(font.getlength(text)) for text in texts], width)
    sheet = Image.new("RGB", (width, lines * LINE), PAPER)
    draw = ImageDraw.Draw(sheet)
    for (x, line), text, (_, color) in zip(positions, texts, entries, strict=True):
        top = line * LINE + (LINE - SWATCH) // 2
        draw.rectangle((x, top, x + SWATCH - 1, top + SWATCH - 1), color)
        draw.text((x + SWATCH + GAP // 2, line * LINE + LINE // 2), text, INK, font, anchor="lm")
    return np.array(sheet)


def _flow(widths: Iterable[int], limit: int) -> tuple[list[tuple[int, int]], int]:
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
