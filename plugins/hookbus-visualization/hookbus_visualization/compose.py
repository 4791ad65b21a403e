"""Composition of the panels of a record into one image, with matplotlib or Pillow, and the window that displays it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from hookbus_visualization.grid import compute_layout, render_grid, resize_to_fit
from hookbus_visualization.panel import Panel, RGBImage


def compose_panels(panels: Sequence[Panel], title: str, backend: str) -> RGBImage:
    """Compose panels into one image.

    Args:
        panels: At least one panel.
        title: Text above the panels.
        backend: "matplotlib", or any other value for Pillow. Pillow is also used if matplotlib is not installed.

    Returns:
        The pixels, (H, W, 3), uint8.
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


MIN_CELL_INCHES, CAPTION_INCHES, TITLE_INCHES = 1.8, 0.45, 0.4
"""Minimum side of an image, height of a caption and height of the title, in inches."""
DPI = 100
"""Resolution in pixels per inch."""


def render_figure(panels: Sequence[Panel], title: str = "") -> RGBImage:
    """Render panels side by side.

    Args:
        panels: At least one panel.
        title: Text above the panels.

    Returns:
        The pixels, (H, W, 3), uint8.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    # Imported here because matplotlib is an optional dependency.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, heights, columns = _compute_cells(panels)
    # Not pyplot.figure: pyplot selects a GUI backend and keeps a reference to each of its figures.
    sheet = Figure(figsize=(columns * width, sum(heights) + TITLE_INCHES), dpi=DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(sheet)
    sheet.suptitle(_escape_mathtext(title), fontsize=9)
    cells = sheet.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, panel in enumerate(panels):
        _draw_panel(sheet.add_subplot(cells[divmod(i, columns)]), panel)
    canvas.draw()
    # buffer_rgba is a view of the canvas: np.array copies it, and `copy` makes the RGB slice contiguous.
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _compute_cells(panels: Sequence[Panel]) -> tuple[float, list[float], int]:
    """Return the width of the columns and the height of each row, in inches, and the number of columns."""
    columns, max_side = compute_layout([panel.image for panel in panels])
    shapes = [resize_to_fit(panel.image, max_side=max_side).shape for panel in panels]
    # One scale for all panels: images of equal size must have equal size on the figure.
    scale = max(1 / DPI, MIN_CELL_INCHES / max(max(shape) for shape in shapes))
    width = max(MIN_CELL_INCHES, *(shape[1] * scale for shape in shapes))
    heights = [shape[0] * scale + CAPTION_INCHES for shape in shapes]
    return width, [max(heights[i : i + columns]) for i in range(0, len(heights), columns)], columns


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.imshow(panel.image, interpolation="antialiased")
    axes.set_xlabel(_escape_mathtext(panel.caption), fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(panel.frame is not None)
        side.set_linewidth(3)
        side.set_edgecolor([channel / 255 for channel in panel.frame or (0, 0, 0)])


def _escape_mathtext(text: str) -> str:
    """Escape dollar signs, which start mathtext in matplotlib."""
    return text.replace("$", r"\$")
