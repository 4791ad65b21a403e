"""Rendering of token sequences as rows of cells. Independent of hookbus."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from hookbus_visualization.panel import (
    BACKGROUND_COLOR,
    CORRECT_COLOR,
    INCORRECT_COLOR,
    LINE_HEIGHT_PIXELS,
    MAX_SIDE_PIXELS,
    TEXT_COLOR,
    Color,
    RGBImage,
    ellipsize,
    get_font,
)

PADDING_PIXELS = 4
OVERFLOW_WIDTH_PIXELS = 100
"""Width in pixels that is reserved for `… <count> more`."""
CELL_COLOR: Color = (235, 235, 235)


def render_tokens(tokens: Sequence[object], correct: Sequence[bool | None] | None = None) -> RGBImage:
    """Render tokens; tokens that do not fit are replaced by their number.

    Args:
        tokens: Words, or token IDs.
        correct: Mark of each token: True underlines the token, False also crosses it out, None adds no mark.

    Returns:
        The pixels, (H, 320, 3), uint8, with H at most 320.
    """
    texts = [str(token) for token in tokens]
    corners = _place_cells(texts)
    image = Image.new(
        "RGB",
        (MAX_SIDE_PIXELS, (corners[-1][1] + LINE_HEIGHT_PIXELS if corners else LINE_HEIGHT_PIXELS) + PADDING_PIXELS),
        BACKGROUND_COLOR,
    )
    draw = ImageDraw.Draw(image)
    for i, corner in enumerate(corners):
        remaining = len(texts) - i
        if i == len(corners) - 1 and remaining > 1:
            draw.text(corner, f"… {remaining} more", TEXT_COLOR, get_font())
        else:
            _draw_cell(draw, corner, texts[i], correct[i] if correct is not None and i < len(correct) else None)
    return np.array(image)


def _place_cells(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the left and top corners of the cells; `… <count> more` fits at the last one."""
    corners, left, top = [], PADDING_PIXELS, PADDING_PIXELS
    for text in texts:
        width = _get_cell_width(text)
        if left + width > MAX_SIDE_PIXELS - PADDING_PIXELS and left > PADDING_PIXELS:
            left, top = PADDING_PIXELS, top + LINE_HEIGHT_PIXELS + PADDING_PIXELS
        if top + LINE_HEIGHT_PIXELS + PADDING_PIXELS > MAX_SIDE_PIXELS:
            break
        corners.append((left, top))
        left += width + PADDING_PIXELS
    # The last cell is replaced by `… <count> more`: cells are removed until the text fits.
    while len(corners) < len(texts) and corners[-1][0] > MAX_SIDE_PIXELS - OVERFLOW_WIDTH_PIXELS:
        corners.pop()
    return corners


def _get_cell_width(text: str) -> int:
    # No character is narrower than a pixel, so the first `MAX_SIDE_PIXELS` characters are enough to measure the width.
    return (
        min(round(get_font().getlength(text[:MAX_SIDE_PIXELS])), MAX_SIDE_PIXELS - 4 * PADDING_PIXELS)
        + 2 * PADDING_PIXELS
    )


def _draw_cell(draw: ImageDraw.ImageDraw, corner: tuple[int, int], text: str, correct: bool | None) -> None:
    left, top = corner
    width = _get_cell_width(text)
    draw.rectangle((left, top, left + width - 1, top + LINE_HEIGHT_PIXELS - 1), CELL_COLOR)
    draw.text((left + PADDING_PIXELS, top + 1), ellipsize(text, width - 2 * PADDING_PIXELS + 1), TEXT_COLOR, get_font())
    if correct is not None:
        draw.line(
            (left, top + LINE_HEIGHT_PIXELS - 1, left + width - 1, top + LINE_HEIGHT_PIXELS - 1),
            CORRECT_COLOR if correct else INCORRECT_COLOR,
            2,
        )
    # An incorrect token is also crossed out, so that marks are distinguishable without colors.
    if correct is False:
        draw.line(
            (left, top + LINE_HEIGHT_PIXELS // 2, left + width - 1, top + LINE_HEIGHT_PIXELS // 2), INCORRECT_COLOR
        )
