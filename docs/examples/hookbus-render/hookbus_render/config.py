"""The settings of the hooks."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["FrameConfig", "RenderConfig"]


class RenderConfig(HookConfig):
    """What is rendered."""

    layer: str | None = Field(default=None, description="The module whose weight is shown; default the first.")
    tag: str = Field(default="weights", min_length=1, description="The name of the picture.")


class FrameConfig(HookConfig):
    """What the frame looks like."""

    width: int = Field(default=1, ge=1, description="Pixels of the frame.")
    value: int = Field(default=255, ge=0, le=255, description="Its brightness.")
