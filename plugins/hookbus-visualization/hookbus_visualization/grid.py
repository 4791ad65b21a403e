"""Layout of panels with Pillow: a grid of images, each with its caption below. Independent of hookbus."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookbus_visualization.panel import BACKGROUND_COLOR, TEXT_COLOR, Panel, RGBImage

MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 120, 320
"""Bounds of the longer side of an image in pixels: smaller images are enlarged, larger images are downsampled."""

ROW_WIDTH_PIXELS = 1600
"""Approximate width of a row in pixels. Images in a row with few columns may be larger than `MAX_SIDE_PIXELS`."""

GAP_PIXELS, FRAME_PIXELS, FONT_SIZE_PIXELS, LINE_HEIGHT_PIXELS = 12, 4, 12, 16
MAX_CAPTION_WIDTH_PIXELS = 190
"""Maximum width in pixels that a caption adds to its column; a longer caption is truncated."""

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont | ImageFont.TransposedFont


@functools.cache
def get_font(size: float = FONT_SIZE_PIXELS) -> Font:
    """Return the font that is bundled with Pillow, which is available on every system."""
    return ImageFont.load_default(size)


def render_grid(panels: Sequence[Panel], title: str = "") -> RGBImage:
    """Render panels side by side.

    Args:
        panels: At least one panel. Small images are enlarged by an integer factor, large images are downsampled.
        title: Text above the panels.

    Returns:
        The pixels, (H, W, 3), uint8.
    """
    columns, max_side = compute_layout([panel.image for panel in panels])
    images = [resize_to_fit(panel.image, max_side=max_side) for panel in panels]
    width, heights = _compute_cells(panels, images, columns)
    head = LINE_HEIGHT_PIXELS + GAP_PIXELS if title else 0
    sheet = Image.new("RGB", (columns * width + GAP_PIXELS, head + sum(heights) + GAP_PIXELS), BACKGROUND_COLOR)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((GAP_PIXELS, GAP_PIXELS), ellipsize(title, sheet.width - 2 * GAP_PIXELS), TEXT_COLOR, get_font())
    for i, (panel, image) in enumerate(zip(panels, images, strict=True)):
        row, column = divmod(i, columns)
        _draw_panel(
            sheet,
            draw,
            panel,
            image,
            (GAP_PIXELS + column * width, head + GAP_PIXELS + sum(heights[:row])),
            width - GAP_PIXELS,
        )
    return np.array(sheet)


def compute_layout(images: Sequence[RGBImage]) -> tuple[int, int]:
    """Compute the layout of an approximately square grid of images.

    Args:
        images: At least one image, of any size.

    Returns:
        The number of columns, and the maximum of the longer side of an image in pixels.
    """
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    # n images of size (h, w) in c columns form a square if c * w == n / c * h.
    columns = min(math.ceil(math.sqrt(len(images) * height / width)), len(images))
    return columns, max(MAX_SIDE_PIXELS, ROW_WIDTH_PIXELS // columns)


def _compute_cells(panels: Sequence[Panel], images: Sequence[RGBImage], columns: int) -> tuple[int, list[int]]:
    """Return the width of the columns and the height of each row, for the largest image and the longest caption."""
    captions = [panel.caption.splitlines() for panel in panels]
    # No character is narrower than a pixel, so this prefix is enough to measure the width up to the limit.
    text = max(
        (math.ceil(get_font().getlength(line[:MAX_CAPTION_WIDTH_PIXELS])) for lines in captions for line in lines),
        default=0,
    )
    width = max(min(text, MAX_CAPTION_WIDTH_PIXELS), *(image.shape[1] for image in images))
    heights = [
        image.shape[0] + LINE_HEIGHT_PIXELS * len(lines) + GAP_PIXELS
        for image, lines in zip(images, captions, strict=True)
    ]
    return width + GAP_PIXELS, [max(heights[i : i + columns]) for i in range(0, len(heights), columns)]


def hstack_images(images: Sequence[RGBImage]) -> RGBImage:
    """Stack images horizontally, each resized by `resize_to_fit`, with a white gap between them.

    Args:
        images: At least one image, (H, W, 3), uint8.

    Returns:
        The pixels, (H, W, 3), uint8, with the height of the highest image.
    """
    images = [resize_to_fit(image) for image in images]
    height, width = (
        max(image.shape[0] for image in images),
        sum(image.shape[1] + FRAME_PIXELS for image in images) - FRAME_PIXELS,
    )
    row = np.full((height, width, 3), 255, np.uint8)
    left = 0
    for image in images:
        row[: image.shape[0], left : left + image.shape[1]] = image
        left += image.shape[1] + FRAME_PIXELS
    return row


def resize_to_fit(image: RGBImage, min_side: int = MIN_SIDE_PIXELS, max_side: int = MAX_SIDE_PIXELS) -> RGBImage:
    """Resize an image to a readable size.

    Args:
        image: Pixels, (H, W, 3), uint8.
        min_side: Minimum of the longer side in pixels, if an integer factor reaches it without exceeding `max_side`.
        max_side: Maximum of the longer side in pixels.

    Returns:
        The resized pixels, (H, W, 3), uint8. The aspect ratio is unchanged.
    """
    height, width = image.shape[:2]
    longer = max(height, width)
    if longer > max_side:
        # An image of 1 x 1000 pixels keeps a side of at least one pixel.
        size = (max(1, round(width * max_side / longer)), max(1, round(height * max_side / longer)))
        return np.array(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    # An integer factor keeps the original pixels visible: each becomes a square of one color.
    factor = max(1, min(math.ceil(min_side / longer), max_side // longer))
    return image.repeat(factor, axis=0).repeat(factor, axis=1)


def ellipsize(text: str, width: float) -> str:
    """Truncate a line with `…` to a width in pixels."""
    font = get_font()
    # No character is narrower than a pixel. Measuring a prefix bounds the cost for a caption of any length.
    if font.getlength(text[: int(width) + 1]) <= width:
        return text
    text = text[: int(width)]
    while text and font.getlength(f"{text}…") > width:
        text = text[:-1]
    return f"{text}…"


def _draw_panel(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, panel: Panel, image: RGBImage, corner: tuple[int, int], width: int
) -> None:
    """Draw an image with its frame and its caption."""
    left, top = corner
    height = image.shape[0]
    if panel.frame is not None:
        box = (
            left - FRAME_PIXELS,
            top - FRAME_PIXELS,
            left + image.shape[1] + FRAME_PIXELS - 1,
            top + height + FRAME_PIXELS - 1,
        )
        draw.rectangle(box, panel.frame)
    sheet.paste(Image.fromarray(image), corner)
    for i, line in enumerate(panel.caption.splitlines()):
        draw.text(
            (left, top + height + FRAME_PIXELS + i * LINE_HEIGHT_PIXELS), ellipsize(line, width), TEXT_COLOR, get_font()
        )
