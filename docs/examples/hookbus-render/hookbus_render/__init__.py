"""Renders weights as pictures, at a point of its own where other hooks may draw."""

from hookbus_render.config import FrameConfig, RenderConfig
from hookbus_render.hook import FrameHook, RenderHook
from hookbus_render.picture import picture_of

__all__ = ["FrameConfig", "FrameHook", "RenderConfig", "RenderHook", "picture_of"]
