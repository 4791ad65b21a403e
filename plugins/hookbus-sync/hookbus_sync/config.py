"""Configuration of the synchronization hooks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from hookbus import HookConfig

PositiveInt = Annotated[int, Field(ge=1)]


class SyncRandomSizeConfig(HookConfig):
    """Range of image sizes, aspect ratio and interval."""

    ratio_range: tuple[PositiveInt, PositiveInt] = Field(
        default=(14, 26), description="Range of the random factor k, both ends included; the height is 32 k pixels."
    )
    img_scale: tuple[PositiveInt, PositiveInt] = Field(
        default=(640, 640), description="Height and width that define the aspect ratio."
    )
    interval: int = Field(default=10, ge=1, description="Change the size every N iterations.")

    @field_validator("ratio_range")
    @classmethod
    def _validate_ratio_range(cls, value: tuple[int, int]) -> tuple[int, int]:
        if value[0] > value[1]:
            raise ValueError(f"must be (minimum, maximum), got {value!r}. Set the smaller value first.")
        return value


class SyncMetricsConfig(HookConfig):
    """Metrics that are averaged over the ranks."""

    metrics: list[str] = Field(
        default=["loss"], min_length=1, description="Names of step outputs to average over all ranks."
    )
