"""A legend: which colour is which class. Usable without hookbus."""

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
"""So many classes at most; the last line then says how many more there are."""


def draw_legend(
    classes: Iterable[int], width: int, names: Sequence[str] = (), palette: Sequence[Colour] = ()
) -> Picture:
    """Draw a patch of colour with its name for each class, in lines of a given width.

    Args:
        classes: the ids; each has one entry, in their order.
        width: of the picture in pixels; a name that does not fit is cut.
        names: of the classes, by id; a class without one has its number.
        palette: colours of the first classes; default the fixed ones.

    Returns:
        (H, width, 3); H is 0 without classes.
    """
    ids = sorted(set(classes))
    entries = [(name_of(each, names), colour_of(each, palette)) for each in ids[:MOST]]
    if len(ids) > MOST:
        entries.append((f"and {len(ids) - MOST} more", PAPER))
    font, room = text_font(), width - SWATCH - 2 * GAP
    texts = [shortened(name, room) for name, _ in entries]
    places, lines = _flow([SWATCH + 2 * GAP + round(font.getlength(text)) for text in texts], width)
    sheet = Image.new("RGB", (width, lines * LINE), PAPER)
    draw = ImageDraw.Draw(sheet)
    for (x, line), text, (_, colour) in zip(places, texts, entries, strict=True):
        top = line * LINE + (LINE - SWATCH) // 2
        draw.rectangle((x, top, x + SWATCH - 1, top + SWATCH - 1), colour)
        draw.text((x + SWATCH + GAP // 2, line * LINE + LINE // 2), text, INK, font, anchor="lm")
    return np.array(sheet)


def _flow(widths: Iterable[int], width: int) -> tuple[list[tuple[int, int]], int]:
    """Where things of some widths go that are put side by side, as (x, line), and the number of lines."""
    places: list[tuple[int, int]] = []
    x, line = 0, 0
    for each in widths:
        if x and x + each > width:
            x, line = 0, line + 1
        places.append((x, line))
        x += each
    return places, line + 1 if places else 0
