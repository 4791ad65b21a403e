"""Layout of panels with matplotlib. Independent of hookbus; does not modify the state of pyplot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hookbus_visualization.grid import fitted, layout
from hookbus_visualization.panel import Panel, Picture

__all__ = ["figure"]

CELL, CAPTION, TITLE = 1.8, 0.45, 0.4
"""Minimum side of an image, height of a caption and height of the title, in inches."""
DOTS = 100
"""Resolution in pixels per inch."""


def figure(panels: Sequence[Panel], title: str = "") -> Picture:
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

    width, heights, columns = _cells(panels)
    # Not pyplot.figure: pyplot selects a GUI backend and keeps a reference to each of its figures.
    sheet = Figure(figsize=(columns * width, sum(heights) + TITLE), dpi=DOTS, layout="constrained")
    canvas: Any = FigureCanvasAgg(sheet)
    sheet.suptitle(_literal(title), fontsize=9)
    cells = sheet.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, panel in enumerate(panels):
        _draw(sheet.add_subplot(cells[divmod(i, columns)]), panel)
    canvas.draw()
    # buffer_rgba is a view of the canvas: np.array copies it, and `copy` makes the RGB slice contiguous.
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _cells(panels: Sequence[Panel]) -> tuple[float, list[float], int]:
    """Return the width of the columns and the height of each row, in inches, and the number of columns."""
    columns, most = layout([panel.picture for panel in panels])
    shapes = [fitted(panel.picture, most=most).shape for panel in panels]
    # One scale for all panels: images of equal size must have equal size on the figure.
    scale = max(1 / DOTS, CELL / max(max(shape) for shape in shapes))
    width = max(CELL, *(shape[1] * scale for shape in shapes))
    heights = [shape[0] * scale + CAPTION for shape in shapes]
    return width, [max(heights[i : i + columns]) for i in range(0, len(heights), columns)], columns


def _draw(axes: Any, panel: Panel) -> None:
    axes.imshow(panel.picture, interpolation="antialiased")
    axes.set_xlabel(_literal(panel.caption), fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(panel.frame is not None)
        side.set_linewidth(3)
        side.set_edgecolor([channel / 255 for channel in panel.frame or (0, 0, 0)])


def _literal(text: str) -> str:
    """Escape dollar signs, which start mathtext in matplotlib."""
    return text.replace("$", r"\$")
