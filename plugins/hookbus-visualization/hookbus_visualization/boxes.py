"""Bounding boxes: conversion of box formats, and drawing with text labels. Independent of hookbus.

A box covers the pixels from its left and top edge up to, but excluding, its right and bottom edge: the box
(0, 0, width, height) covers the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hookbus_visualization.anomalies import report_anomaly
from hookbus_visualization.palette import contrast_color
from hookbus_visualization.panel import Color, RGBImage, get_font

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
"""Two corners; a corner, width and height; or the center, width and height."""

MAX_TAGS = 200
"""Maximum number of tags; more would cover the image."""
MIN_FONT_SIZE_PIXELS, MAX_FONT_SIZE_PIXELS, LINES_PER_IMAGE = 10, 24, 30
"""Bounds of the font size in pixels, and the number of text lines that would fill an image."""
PADDING_PIXELS = 2

MAX_COORDINATE_PIXELS = 1e6
"""Limit of coordinates in pixels: outside every image, and exactly representable."""


def to_xyxy(
    boxes: Any, form: BoxFormat = "xyxy", *, normalized: bool = False, size: tuple[int, int] = (1, 1)
) -> NDArray[np.float64]:
    """Convert boxes to corners.

    Args:
        boxes: Boxes, (N, 4), or (4,) for a single box. An array without elements contains no boxes.
        form: Format of the boxes.
        normalized: Whether coordinates are fractions of the image size instead of pixels.
        size: Height and width of the image in pixels.

    Returns:
        The corners, (N, 4): left, top, right, bottom in pixels, with left <= right and top <= bottom. NaN is kept.

    Raises:
        ValueError: If the boxes have another shape.
    """
    array = np.asarray(boxes, dtype=np.float64)
    if array.size == 0:
        return np.zeros((0, 4))
    if array.ndim not in (1, 2) or array.shape[-1] != 4:
        raise ValueError(f"boxes must have shape (N, 4), got {array.shape}")
    first, second = np.split(array.reshape(-1, 4), 2, axis=1)
    _report_invalid(first, second, form)
    scale = size[::-1] if normalized else (1, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and their differences
        if form == "cxcywh":
            first = first - second / 2
        ends = np.stack([first, second if form == "xyxy" else first + second])
        # Models in early training predict negative widths and swapped corners.
        corners: NDArray[np.float64] = np.hstack([ends.min(axis=0), ends.max(axis=0)]) * np.tile(scale, 2)
    return corners


def _report_invalid(first: NDArray[np.float64], second: NDArray[np.float64], form: BoxFormat) -> None:
    is_infinite = ~np.isfinite(np.hstack([first, second])).all(axis=1)
    report_anomaly("boxes have coordinates that are NaN or infinite", "Boxes with NaN are not drawn.", is_infinite)
    is_inverted = (second < (first if form == "xyxy" else 0)).any(axis=1)
    problem = "boxes are inverted: right < left or bottom < top" if form == "xyxy" else "boxes have a negative size"
    report_anomaly(problem, "They are drawn with swapped corners.", is_inverted)


def get_visible_mask(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask, (N,), of the corners, (N, 4), without NaN that overlap an image of a height and width."""
    height, width = size
    left, top, right, bottom = boxes.T
    # Comparisons with NaN are false.
    overlaps: NDArray[np.bool_] = (left < width) & (top < height) & (right >= 0) & (bottom >= 0)
    return overlaps


def draw_boxes(
    image: RGBImage,
    boxes: NDArray[np.float64],
    colors: NDArray[np.uint8],
    *,
    thickness: int = 2,
    dashed: bool = False,
) -> RGBImage:
    """Draw the outlines of boxes, the last one on top.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        boxes: Corners, (N, 4), xyxy in pixels. Parts outside the image and boxes with NaN are not drawn.
        colors: Color of each box, (N, 3), uint8.
        thickness: Line width in pixels, towards the inside of the box.
        dashed: Whether lines are dashed. The gaps are black or white, whichever has the higher contrast to the color:
            dashed and solid boxes are distinguishable on any background, on top of each other, and without colors.

    Returns:
        A new image, (H, W, 3), uint8.
    """
    pixels = image.copy()
    is_visible = get_visible_mask(boxes, image.shape[:2])
    # Clipped before the conversion to integers, which is undefined for infinities.
    corners = np.clip(boxes[is_visible], -MAX_COORDINATE_PIXELS, MAX_COORDINATE_PIXELS).round().astype(int)
    for corner, color in zip(corners.tolist(), colors[is_visible], strict=True):
        inks = np.stack([color, np.array(contrast_color(tuple(color.tolist())), np.uint8)]) if dashed else color[None]
        _draw_frame(pixels, corner, inks, thickness)
    return pixels


def _draw_frame(pixels: RGBImage, corners: list[int], inks: NDArray[np.uint8], thickness: int) -> None:
    left, top, right, bottom = corners
    # A box without extent is drawn as one pixel, so that it is not overlooked.
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    # Only the lower bounds are clipped: a slice may end after the image.
    across, down = slice(max(left, 0), max(right, 0)), slice(max(top, 0), max(bottom, 0))
    line_colors = _get_line_colors(left, right, pixels.shape[1], inks, thickness)
    for rows in _get_side_slices(top, bottom, thickness):
        pixels[rows, across] = line_colors
    line_colors = _get_line_colors(top, bottom, pixels.shape[0], inks, thickness)
    for columns in _get_side_slices(left, right, thickness):
        pixels[down, columns] = line_colors[:, None]


def _get_line_colors(start: int, stop: int, limit: int, inks: NDArray[np.uint8], thickness: int) -> NDArray[np.uint8]:
    """Return the colors along the visible part of an edge, (pixels, 3)."""
    # At most a third of the edge, so that a short edge has at least one gap.
    dash = max(1, min(4 * thickness, (stop - start) // 3))
    # Counted from the start of the box: the dashes do not depend on where the image clips the edge.
    turns: NDArray[np.intp] = (np.arange(max(start, 0), min(stop, limit)) - start) // dash % len(inks)
    return inks[turns]


def _get_side_slices(start: int, stop: int, thickness: int) -> tuple[slice, slice]:
    first, last = min(start + thickness, stop), max(stop - thickness, start)
    return slice(max(start, 0), max(first, 0)), slice(max(last, 0), max(stop, 0))


def draw_tags(
    image: RGBImage,
    boxes: NDArray[np.float64],
    texts: Sequence[str],
    colors: NDArray[np.uint8],
    *,
    text_color: Color | None = None,
    truth: bool = False,
) -> RGBImage:
    """Draw a text at each box, the last one on top.

    A tag of a prediction has the color of its box as background and is above the box. A tag of the ground truth has the
    color of its box as text color and is below the box, so that the two are distinguishable without colors. Tags are
    always inside the image.

    Args:
        image: Pixels, (H, W, 3), uint8; not modified.
        boxes: Corners, (N, 4), xyxy in pixels. Boxes outside the image have no tag. If more than 200 boxes have a tag,
            only the last 200 tags are drawn.
        texts: One text per box; an empty text has no tag.
        colors: Color of each box, (N, 3), uint8.
        text_color: Color of all texts. Default: the color of the box, or black or white by contrast.
        truth: Whether the boxes are the ground truth.

    Returns:
        A new image, (H, W, 3), uint8.
    """
    indices = [i for i in np.flatnonzero(get_visible_mask(boxes, image.shape[:2])).tolist() if texts[i]][-MAX_TAGS:]
    if not indices:
        return image.copy()
    canvas = Image.fromarray(image)
    font_size = min(max(min(canvas.size) // LINES_PER_IMAGE, MIN_FONT_SIZE_PIXELS), MAX_FONT_SIZE_PIXELS)
    draw, font = ImageDraw.Draw(canvas), get_font(font_size)
    for i in indices:
        background, ink = _get_tag_colors(tuple(colors[i].tolist()), text_color, truth)
        rectangle = _place_tag(boxes[i], draw.textbbox((0, 0), texts[i], font), canvas.size, truth)
        draw.rectangle(rectangle, background)
        draw.text((rectangle[0] + PADDING_PIXELS, rectangle[1] + PADDING_PIXELS), texts[i], ink, font)
    # asarray returns a read-only view of a PIL image.
    return np.asarray(canvas).copy()


def _get_tag_colors(color: Color, text_color: Color | None, truth: bool) -> tuple[Color, Color]:
    """Return the colors of the background and of the text."""
    if truth:
        ink = text_color or color
        return contrast_color(ink), ink
    return color, text_color or contrast_color(color)


def _place_tag(
    box: NDArray[np.float64], text: tuple[float, ...], size: tuple[int, int], below: bool
) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a tag: outside the box if it fits into the image, otherwise inside it."""
    width, height = round(text[2]) + 2 * PADDING_PIXELS, round(text[3]) + 2 * PADDING_PIXELS
    # Clipped first: the corners of a box may be infinite, which `round` cannot convert.
    left, top, _, bottom = (round(coordinate) for coordinate in np.clip(box, 0, [*size, *size]))
    if below:
        top = bottom if bottom + height < size[1] else bottom - height
    else:
        top = top - height if top >= height else top
    x, y = (
        max(0, min(start, limit - extent))
        for start, limit, extent in zip((left, top), size, (width, height), strict=True)
    )
    return x, y, x + width - 1, y + height - 1
