"""Composition of the panels of a record into one image, and the window that displays it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from PIL import Image

from hookbus_visualization.figure import render_figure
from hookbus_visualization.grid import render_grid
from hookbus_visualization.panel import Panel, RGBImage

__all__ = ["compose_panels", "has_display", "open_window"]


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
