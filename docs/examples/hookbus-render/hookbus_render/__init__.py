"""Render weights as images, and declare a point at which other hooks can modify them."""

from hookbus_render.config import FrameConfig, RenderConfig
from hookbus_render.hook import FrameHook, RenderHook
from hookbus_render.image import render_weight

__all__ = ["FrameConfig", "FrameHook", "RenderConfig", "RenderHook", "render_weight"]
