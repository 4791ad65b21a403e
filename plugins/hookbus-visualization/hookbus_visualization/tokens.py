"""Rendering of token sequences as rows of cells. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from hookbus_visualization.grid import LINE, MOST, shortened, text_font
from hookbus_visualization.panel import INK, PAPER, RIGHT, WRONG, Colour, Picture

__all__ = ["token_picture"]

PAD = 4
MORE = 100
"""Width in pixels that is reserved for `… <count> more`."""
CELL: Colour = (235, 235, 235)


def token_picture(tokens: Sequence[object], correct: Sequence[bool | None] | None = None) -> Picture:
    """Render tokens; tokens that do not fit are replaced by their number.

    Args:
        tokens: Words, or token IDs.
        correct: Mark of each token: True underlines the token, False also crosses it out, None adds no mark.

    Returns:
        The pixels, (H, 320, 3), uint8, with H at most 320.
    """
    texts = [str(token) for token in tokens]
    corners = _places(texts)
    image = Image.new("RGB", (MOST, (corners[-1][1] + LINE if corners else LINE) + PAD), PAPER)
    draw = ImageDraw.Draw(image)
    for i, corner in enumerate(corners):
        remaining = len(texts) - i
        if i == len(corners) - 1 and remaining > 1:
            draw.text(corner, f"… {remaining} more", INK, text_font())
        else:
            _cell(draw, corner, texts[i], correct[i] if correct is not None and i < len(correct) else None)
    return np.array(image)


def _places(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the left and top corners of the cells; `… <count> more` fits at the last one."""
    corners, left, top = [], PAD, PAD
    for text in texts:
        width = _width(text)
        if left + width > MOST - PAD and left > PAD:
            left, top = PAD, top + LINE + PAD
        if top + LINE + PAD > MOST:
            break
        corners.append((left, top))
        left += width + PAD
    # The last cell is replaced by `… <count> more`: cells are removed until the text fits.
    while len(corners) < len(texts) and corners[-1][0] > MOST - MORE:
        corners.pop()
    return corners


def _width(text: str) -> int:
    # No character is narrower than a pixel, so the first MOST characters are enough to measure the width.
    return min(round(text_font().getlength(text[:MOST])), MOST - 4 * PAD) + 2 * PAD


def _cell(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, correct: bool | None) -> None:
    left, top = corner
    width = _width(text)
    draw.rectangle((left, top, left + width - 1, top + LINE - 1), CELL)
    draw.text((left + PAD, top + 1), shortened(text, width - 2 * PAD + 1), INK, text_font())
    if correct is not None:
        draw.line((left, top + LINE - 1, left + width - 1, top + LINE - 1), RIGHT if correct else WRONG, 2)
    # An incorrect token is also crossed out, so that marks are distinguishable without colors.
    if correct is False:
        draw.line((left, top + LINE // 2, left + width - 1, top + LINE // 2), WRONG)
