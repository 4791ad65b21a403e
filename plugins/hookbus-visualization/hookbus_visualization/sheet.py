"""How the pictures of one record are arranged, and the window that shows them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence

from PIL import Image

from hookbus_visualization.figure import figure
from hookbus_visualization.grid import grid
from hookbus_visualization.panel import Panel, Picture

__all__ = ["has_display", "open_window", "sheet"]


def sheet(panels: Sequence[Panel], title: str, backend: str) -> Picture:
    """All pictures of a record as one.

    Args:
        panels: at least one.
        title: stands above.
        backend: "matplotlib", or anything else for Pillow, which is also taken where matplotlib is not installed.
    """
    if backend == "matplotlib" and importlib.util.find_spec("matplotlib") is not None:
        return figure(panels, title)
    return grid(panels, title)


def has_display() -> bool:
    """Whether there is a screen on which a window can appear."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_window(picture: Picture, title: str) -> None:
    """Hand a picture to the viewer of the desktop, and go on."""
    Image.fromarray(picture).show(title=title)
