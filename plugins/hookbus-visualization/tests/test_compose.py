import sys

import numpy as np
import pytest
from PIL import Image

from hookbus_visualization.compose import compose_panels, has_display, open_window, render_figure
from hookbus_visualization.grid import render_grid
from hookbus_visualization.panel import Panel

PANELS = [Panel(np.full((4, 4, 3), 100, np.uint8), "a")]


class TestSheet:
    def test_backend_selects_the_layout(self):
        assert compose_panels(PANELS, "t", "matplotlib").tolist() == render_figure(PANELS, "t").tolist()
        assert compose_panels(PANELS, "t", "pillow").tolist() == render_grid(PANELS, "t").tolist()
        assert compose_panels(PANELS, "t", "tensorboard").tolist() == render_grid(PANELS, "t").tolist()

    def test_pillow_is_used_if_matplotlib_is_not_installed(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert compose_panels(PANELS, "t", "matplotlib").tolist() == render_grid(PANELS, "t").tolist()


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"DISPLAY": ""}, False),
        ("darwin", {}, True),
    ],
)
def test_display_is_detected_by_platform_and_environment(monkeypatch, system, variables, expected):
    monkeypatch.setattr(sys, "platform", system)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_display() is expected


def test_window_receives_the_image_and_the_title(monkeypatch):
    windows = []
    monkeypatch.setattr(Image.Image, "show", lambda self, title=None: windows.append((self.size, title)))
    open_window(np.zeros((2, 5, 3), np.uint8), "step 1")
    assert windows == [((5, 2), "step 1")]
