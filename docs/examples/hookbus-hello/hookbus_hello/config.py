"""Settings of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["HelloConfig"]


class HelloConfig(HookConfig):
    """Settings of `HelloHook`."""

    text: str = Field(default="hello", min_length=1, description="Text to log.")
    interval: int = Field(default=50, gt=0, description="Log every N iterations.")
