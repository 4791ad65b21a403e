"""Settings of the hooks."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["FrameConfig", "RenderConfig"]


class RenderConfig(HookConfig):
    """Settings of `RenderHook`."""

    layer: str | None = Field(
        default=None, description="Module whose weight is rendered. Default: the first with a weight."
    )
    tag: str = Field(default="weights", min_length=1, description="Tag of the image.")


class FrameConfig(HookConfig):
    """Settings of `FrameHook`."""

    width: int = Field(default=1, ge=1, description="Width of the frame in pixels.")
    value: int = Field(default=255, ge=0, le=255, description="Gray value of the frame.")
