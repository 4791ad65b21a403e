"""Panels: pixels with a caption and a frame, and their layout in one image with matplotlib or Pillow.

Independent of hookbus.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

RGBImage = NDArray[np.uint8]
"""RGB pixels, (H, W, 3), uint8."""

Color = tuple[int, int, int]
"""Red, green and blue, each from 0 to 255."""

BACKGROUND_COLOR: Color = (255, 255, 255)
TEXT_COLOR: Color = (40, 40, 40)
# Blue and orange instead of green and red, which look alike with the most common forms of color blindness.
CORRECT_COLOR: Color = (0, 114, 178)
INCORRECT_COLOR: Color = (213, 94, 0)


class Panel(NamedTuple):
    """One image of a record.

    Attributes:
        image: Pixels, (H, W, 3), uint8.
        caption: Text below the image; "" for none.
        frame: Color of the frame around the image; None for no frame.
    """

    image: RGBImage
    caption: str = ""
    frame: Color | None = None


MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 120, 320
"""Bounds of the longer side of an image in pixels: smaller images are enlarged, larger images are downsampled."""

ROW_WIDTH_PIXELS = 1600
"""Approximate width of a row in pixels. Images in a row with few columns may be larger than `MAX_SIDE_PIXELS`."""

GAP_PIXELS, FRAME_PIXELS, FONT_SIZE_PIXELS, LINE_HEIGHT_PIXELS = 12, 4, 12, 16
MAX_CAPTION_WIDTH_PIXELS = 190
"""Maximum width in pixels that a caption adds to its column; a longer caption is truncated."""

MIN_CELL_INCHES, CAPTION_INCHES, TITLE_INCHES, DPI = 1.8, 0.45, 0.4, 100
"""Of a matplotlib figure: minimum side of an image, height of a caption and of the title, and pixels per inch."""

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont | ImageFont.TransposedFont


@functools.cache
def get_font(size: float = FONT_SIZE_PIXELS) -> Font:
    """Return the font that is bundled with Pillow, which is available on every system."""
    return ImageFont.load_default(size)


def render_grid(panels: Sequence[Panel], title: str = "") -> RGBImage:
    """Render panels side by side with Pillow; small images are enlarged, large images are downsampled."""
    columns, max_side = compute_layout([panel.image for panel in panels])
    images = [resize_to_fit(panel.image, max_side=max_side) for panel in panels]
    width, heights = _compute_cells(panels, images, columns)
    head = LINE_HEIGHT_PIXELS + GAP_PIXELS if title else 0
    sheet = Image.new("RGB", (columns * width + GAP_PIXELS, head + sum(heights) + GAP_PIXELS), BACKGROUND_COLOR)
    if title:
        text = ellipsize(title, sheet.width - 2 * GAP_PIXELS)
        ImageDraw.Draw(sheet).text((GAP_PIXELS, GAP_PIXELS), text, TEXT_COLOR, get_font())
    for i, (panel, image) in enumerate(zip(panels, images, strict=True)):
        row, column = divmod(i, columns)
        corner = GAP_PIXELS + column * width, head + GAP_PIXELS + sum(heights[:row])
        _draw_panel(sheet, panel._replace(image=image), corner, width - GAP_PIXELS)
    return np.array(sheet)


def compute_layout(images: Sequence[RGBImage]) -> tuple[int, int]:
    """Return the columns of an approximately square grid of images, and the maximum of the longer side in pixels."""
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
    """Stack images, (H, W, 3), horizontally, each resized by `resize_to_fit`, with a white gap between them."""
    images = [resize_to_fit(image) for image in images]
    height = max(image.shape[0] for image in images)
    # The gap is on the left of all images but the first.
    margins = [((0, height - image.shape[0]), (FRAME_PIXELS if i else 0, 0), (0, 0)) for i, image in enumerate(images)]
    return np.hstack([np.pad(*pair, constant_values=255) for pair in zip(images, margins, strict=True)])


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


def wrap(widths: Iterable[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of entries in lines of a maximum width: left edge and line."""
    left, line = 0, 0
    for width in widths:
        # The first entry of a line is placed there even if it is too wide.
        if left and left + width > limit:
            left, line = 0, line + 1
        yield left, line
        left += width


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


def _draw_panel(sheet: Image.Image, panel: Panel, corner: tuple[int, int], width: int) -> None:
    """Draw an image with its frame and its caption."""
    draw, (left, top) = ImageDraw.Draw(sheet), corner
    bottom, right = top + panel.image.shape[0], left + panel.image.shape[1]
    if panel.frame is not None:
        box = (left - FRAME_PIXELS, top - FRAME_PIXELS, right + FRAME_PIXELS - 1, bottom + FRAME_PIXELS - 1)
        draw.rectangle(box, panel.frame)
    sheet.paste(Image.fromarray(panel.image), corner)
    for i, line in enumerate(panel.caption.splitlines()):
        position = left, bottom + FRAME_PIXELS + i * LINE_HEIGHT_PIXELS
        draw.text(position, ellipsize(line, width), TEXT_COLOR, get_font())


def compose_panels(panels: Sequence[Panel], title: str, backend: str) -> RGBImage:
    """Compose at least one panel into one image, (H, W, 3), uint8.

    Args:
        panels: The panels.
        title: Text above the panels.
        backend: "matplotlib", or any other value for Pillow. Pillow is also used if matplotlib is not installed.
    """
    # find_spec instead of catching ImportError, which would hide errors of a broken installation of matplotlib.
    if backend == "matplotlib" and importlib.util.find_spec("matplotlib") is not None:
        return render_figure(panels, title)
    return render_grid(panels, title)


def has_display() -> bool:
    """Return whether a display is available for windows."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_window(image: RGBImage, title: str) -> None:
    """Open an image in the default viewer of the desktop without blocking."""
    Image.fromarray(image).show(title=title)


def render_figure(panels: Sequence[Panel], title: str = "") -> RGBImage:
    """Render panels side by side with matplotlib.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    # Imported here because matplotlib is an optional dependency.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, heights, columns = _compute_axes_sizes(panels)
    # Not pyplot.figure: pyplot selects a GUI backend and keeps a reference to each of its figures.
    sheet = Figure(figsize=(columns * width, sum(heights) + TITLE_INCHES), dpi=DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(sheet)
    sheet.suptitle(title, fontsize=9, parse_math=False)
    cells = sheet.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, panel in enumerate(panels):
        _draw_axes(sheet.add_subplot(cells[divmod(i, columns)]), panel)
    canvas.draw()
    # buffer_rgba is a view of the canvas: np.array copies it, and `copy` makes the RGB slice contiguous.
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _compute_axes_sizes(panels: Sequence[Panel]) -> tuple[float, list[float], int]:
    """Return the width of the columns and the height of each row, in inches, and the number of columns."""
    columns, max_side = compute_layout([panel.image for panel in panels])
    shapes = [resize_to_fit(panel.image, max_side=max_side).shape for panel in panels]
    # One scale for all panels: images of equal size must have equal size on the figure.
    scale = max(1 / DPI, MIN_CELL_INCHES / max(max(shape) for shape in shapes))
    width = max(MIN_CELL_INCHES, *(shape[1] * scale for shape in shapes))
    heights = [shape[0] * scale + CAPTION_INCHES for shape in shapes]
    return width, [max(heights[i : i + columns]) for i in range(0, len(heights), columns)], columns


def _draw_axes(axes: Any, panel: Panel) -> None:
    axes.imshow(panel.image, interpolation="antialiased")
    axes.set_xlabel(panel.caption, fontsize=7, parse_math=False)
    axes.set(xticks=[], yticks=[])
    color = [channel / 255 for channel in panel.frame or (0, 0, 0)]
    axes.spines[:].set(visible=panel.frame is not None, linewidth=3, edgecolor=color)
