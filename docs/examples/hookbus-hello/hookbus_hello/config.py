"""The settings of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig

__all__ = ["HelloConfig"]


class HelloConfig(HookConfig):
    """What is said, and how often."""

    text: str = Field(default="hello", min_length=1, description="What it says.")
    interval: int = Field(default=50, gt=0, description="The mean loss is told so often.")
