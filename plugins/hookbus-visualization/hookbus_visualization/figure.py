"""The same sheet as in `grid`, set by matplotlib. Usable without hookbus; touches no figure of anybody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hookbus_visualization.grid import fitted, layout
from hookbus_visualization.panel import Panel, Picture

__all__ = ["figure"]

CELL, CAPTION, TITLE = 1.8, 0.45, 0.4
"""Inches: the least that a picture has, and what the lines below it and above all of them have."""
DOTS = 100
"""Pixels per inch."""


def figure(panels: Sequence[Panel], title: str = "") -> Picture:
    """Put pictures side by side.

    Args:
        panels: at least one.
        title: stands above.

    Returns:
        (H, W, 3), uint8.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wide, heights, columns = _cells(panels)
    sheet = Figure(figsize=(columns * wide, sum(heights) + TITLE), dpi=DOTS, layout="constrained")
    canvas: Any = FigureCanvasAgg(sheet)
    sheet.suptitle(_literal(title), fontsize=9)
    places = sheet.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, panel in enumerate(panels):
        _draw(sheet.add_subplot(places[divmod(i, columns)]), panel)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _cells(panels: Sequence[Panel]) -> tuple[float, list[float], int]:
    """The width of the columns, the height of each row, in inches, and the number of columns."""
    columns, most = layout([panel.picture for panel in panels])
    shapes = [fitted(panel.picture, most=most).shape for panel in panels]
    scale = max(1 / DOTS, CELL / max(max(shape) for shape in shapes))
    wide = max(CELL, *(shape[1] * scale for shape in shapes))
    high = [shape[0] * scale + CAPTION for shape in shapes]
    return wide, [max(high[i : i + columns]) for i in range(0, len(high), columns)], columns


def _draw(axes: Any, panel: Panel) -> None:
    axes.imshow(panel.picture, interpolation="antialiased")
    axes.set_xlabel(_literal(panel.caption), fontsize=7)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(panel.frame is not None)
        side.set_linewidth(3)
        side.set_edgecolor([part / 255 for part in panel.frame or (0, 0, 0)])


def _literal(text: str) -> str:
    """A text in which no dollar begins a formula."""
    return text.replace("$", r"\$")
