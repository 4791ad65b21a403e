"""Boxes: the ways to write one, and their frames on a picture.

A box covers the pixels from its left and top edge up to, and without, its right and bottom edge, so that the frame of
(0, 0, width, height) goes around the whole picture. Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hookbus_visualization.palette import contrast_to
from hookbus_visualization.panel import Picture

__all__ = ["BoxFormat", "draw_boxes", "to_xyxy", "visible"]

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
"""Two corners; a corner, width and height; or the centre, width and height."""

FAR = 1e6
"""Nothing is drawn as far away as this, and whole numbers still are exact."""


def to_xyxy(
    boxes: Any, form: BoxFormat = "xyxy", *, normalized: bool = False, size: tuple[int, int] = (1, 1)
) -> NDArray[np.float64]:
    """Boxes by their corners.

    Args:
        boxes: (N, 4), or (4,) for one; anything without elements is no box.
        form: how they are written.
        normalized: they are parts of the picture from 0 to 1, not pixels.
        size: height and width of the picture.

    Returns:
        (N, 4): left, top, right, bottom in pixels, with left <= right and top <= bottom; NaN stays.

    Raises:
        ValueError: the shape is another one.
    """
    given = np.asarray(boxes, dtype=np.float64)
    if given.size == 0:
        return np.zeros((0, 4))
    if given.ndim not in (1, 2) or given.shape[-1] != 4:
        raise ValueError(f"boxes have shape (N, 4), not {given.shape}")
    first, second = np.split(given.reshape(-1, 4), 2, axis=1)
    if form == "cxcywh":
        first = first - second / 2
    ends = np.stack([first, second if form == "xyxy" else first + second])
    scale = size[::-1] if normalized else (1, 1)
    corners: NDArray[np.float64] = np.hstack([ends.min(axis=0), ends.max(axis=0)]) * np.tile(scale, 2)
    return corners


def visible(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Which boxes can be drawn: no coordinate is NaN, and some part lies in the picture.

    Args:
        boxes: (N, 4) xyxy in pixels.
        size: height and width of the picture.

    Returns:
        (N,).
    """
    height, width = size
    left, top, right, bottom = boxes.T
    inside: NDArray[np.bool_] = (left < width) & (top < height) & (right >= 0) & (bottom >= 0)
    return inside


def draw_boxes(
    image: Picture,
    boxes: NDArray[np.float64],
    colours: NDArray[np.uint8],
    *,
    thickness: int = 2,
    dashed: bool = False,
) -> Picture:
    """Draw the frames of boxes, the last one on top.

    Args:
        image: (H, W, 3); it is not changed.
        boxes: (N, 4) xyxy in pixels, of any size and place. What is outside the picture is not drawn, nor is a box with
            NaN.
        colours: (N, 3).
        thickness: pixels, inwards.
        dashed: the gaps between dashes are black or white, whichever is easier to tell from the colour, so that a
            dashed frame can be told from a solid one on any ground, on top of it as well, and without colours.

    Returns:
        A new picture.
    """
    pixels = image.copy()
    shown = visible(boxes, image.shape[:2])
    corners = np.clip(boxes[shown], -FAR, FAR).round().astype(int)
    for corner, colour in zip(corners.tolist(), colours[shown], strict=True):
        inks = np.stack([colour, np.array(contrast_to(tuple(colour.tolist())), np.uint8)]) if dashed else colour[None]
        _frame(pixels, corner, inks, thickness)
    return pixels


def _frame(pixels: Picture, corners: list[int], inks: NDArray[np.uint8], thickness: int) -> None:
    left, top, right, bottom = corners
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    height, width = pixels.shape[:2]
    across, down = _part(left, right, width), _part(top, bottom, height)
    along = _line(across, left, right, inks, thickness)
    for rows in _sides(top, bottom, height, thickness):
        pixels[rows, across] = along
    along = _line(down, top, bottom, inks, thickness)
    for columns in _sides(left, right, width, thickness):
        pixels[down, columns] = along[:, None]


def _line(part: slice, begin: int, end: int, inks: NDArray[np.uint8], thickness: int) -> NDArray[np.uint8]:
    """The colours along the visible part of an edge, (pixels, 3): inks in turns, three times even on a short edge."""
    dash = max(1, min(4 * thickness, (end - begin) // 3))
    turns: NDArray[np.intp] = (np.arange(part.start, part.stop) - begin) // dash % len(inks)
    return inks[turns]


def _sides(begin: int, end: int, limit: int, thickness: int) -> Iterable[slice]:
    return _part(begin, min(begin + thickness, end), limit), _part(max(end - thickness, begin), end, limit)


def _part(begin: int, end: int, limit: int) -> slice:
    """What lies in the picture of the pixels from `begin` up to `end`."""
    start = min(max(begin, 0), limit)
    return slice(start, max(start, min(end, limit)))
