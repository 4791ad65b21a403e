"""The same sheet as in `grid`, set by matplotlib. Usable without hookbus; touches no figure of anybody else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hookbus_visualization.panel import Panel, Picture

__all__ = ["figure"]

CELL = 1.8
"""Inches per picture."""


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

    columns = math.ceil(math.sqrt(len(panels)))
    rows = math.ceil(len(panels) / columns)
    sheet = Figure(figsize=(columns * CELL, rows * CELL * 1.25 + 0.4), dpi=100, layout="constrained")
    canvas: Any = FigureCanvasAgg(sheet)
    sheet.suptitle(_literal(title), fontsize=9)
    for place, panel in enumerate(panels, start=1):
        _draw(sheet.add_subplot(rows, columns, place), panel)
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3].copy()


def _draw(axes: Any, panel: Panel) -> None:
    axes.imshow(panel.picture, interpolation="nearest")
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
