"""The settings of the hooks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from hookbus import HookConfig

__all__ = ["SyncMetricsConfig", "SyncRandomSizeConfig"]

Positive = Annotated[int, Field(ge=1)]


class SyncRandomSizeConfig(HookConfig):
    """Which sizes there are, and how often there is a new one."""

    ratio_range: tuple[Positive, Positive] = Field(
        default=(14, 26), description="k is drawn from this range, both ends included; the height is 32 k."
    )
    img_scale: tuple[Positive, Positive] = Field(
        default=(640, 640), description="Height and width of the plain size; only their proportion counts."
    )
    interval: int = Field(default=10, ge=1, description="A new size every this many iterations.")

    @field_validator("ratio_range")
    @classmethod
    def _ascending(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError(f"{value!r} is empty: write the smaller number first.")
        return value


class SyncMetricsConfig(HookConfig):
    """Which numbers are exchanged."""

    metrics: list[str] = Field(
        default=["loss"], min_length=1, description="What the step returns and is to be the mean over all processes."
    )
