"""A sequence of tokens as a picture: each in a cell, row after row, like text. Usable without hookbus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from hookbus_visualization.grid import LINE, MOST, shortened, text_font
from hookbus_visualization.panel import INK, PAPER, RIGHT, WRONG, Colour, Picture

__all__ = ["token_picture"]

PAD = 4
MORE = 100
"""So much place is left for `… more`."""
CELL: Colour = (235, 235, 235)


def token_picture(tokens: Sequence[object], right: Sequence[bool | None] | None = None) -> Picture:
    """Draw tokens, as many as there is place for; then it is said how many more there are.

    Args:
        tokens: words, or the numbers that stand for them.
        right: by token, whether it is underlined as right or as wrong; None for neither.

    Returns:
        (H, 320, 3), uint8, H at most 320.
    """
    texts = [str(token) for token in tokens]
    places = _places(texts)
    image = Image.new("RGB", (MOST, (places[-1][1] + LINE if places else LINE) + PAD), PAPER)
    draw = ImageDraw.Draw(image)
    for i, place in enumerate(places):
        left = len(texts) - i
        if i == len(places) - 1 and left > 1:
            draw.text(place, f"… {left} more", INK, text_font())
        else:
            _cell(draw, place, texts[i], right[i] if right is not None and i < len(right) else None)
    return np.array(image)


def _places(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Where cells begin, left and top; the last one that fits has place for `… more`."""
    places, left, top = [], PAD, PAD
    for text in texts:
        wide = _width(text)
        if left + wide > MOST - PAD and left > PAD:
            left, top = PAD, top + LINE + PAD
        if top + LINE + PAD > MOST:
            break
        places.append((left, top))
        left += wide + PAD
    while len(places) < len(texts) and places[-1][0] > MOST - MORE:
        places.pop()
    return places


def _width(text: str) -> int:
    return min(round(text_font().getlength(text[:MOST])), MOST - 4 * PAD) + 2 * PAD


def _cell(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, right: bool | None) -> None:
    left, top = place
    wide = _width(text)
    draw.rectangle((left, top, left + wide - 1, top + LINE - 1), CELL)
    draw.text((left + PAD, top + 1), shortened(text, wide - 2 * PAD + 1), INK, text_font())
    if right is not None:  # a wrong one is crossed out as well, so that it can be told without colours
        draw.line((left, top + LINE - 1, left + wide - 1, top + LINE - 1), RIGHT if right else WRONG, 2)
    if right is False:
        draw.line((left, top + LINE // 2, left + wide - 1, top + LINE // 2), WRONG)
