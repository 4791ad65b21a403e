"""The settings of the hook."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from hookbus import HookConfig

__all__ = ["EMAConfig"]


class EMAConfig(HookConfig):
    """How the weights are averaged, and where the averages are."""

    no_frequency = "updates are counted by interval: say interval: {value}."

    momentum: float = Field(
        default=0.9999, ge=0, lt=1, description="Share of the old average that each update keeps; at least 0.5."
    )
    interval: int = Field(default=1, ge=1, description="Update the average every this many optimizer steps.")
    warm_up: int = Field(
        default=100, ge=0, description="At step i at most (1 + i) / (warm_up + i) is kept; 0: no warm-up."
    )
    resume_from: str | None = Field(
        default=None, description="A checkpoint whose averages a new run starts from; default the model's weights."
    )
    update_buffers: bool = Field(
        default=False, description="Whether floating-point buffers are averaged too (else copied)."
    )
    device: Literal["cpu"] | None = Field(
        default=None, description="Where the averages are kept: cpu; default the device of the weights."
    )
    overlap: bool = Field(
        default=False, description="Experimental: update on another thread during the next forward and backward."
    )

    @field_validator("momentum")
    @classmethod
    def _is_the_share_of_the_old(cls, value: float) -> float:
        if value < 0.5:
            raise ValueError(
                f"{value!r} would forget the average at once. There are two conventions: here momentum is the share of "
                "the old average, average = momentum * average + (1 - momentum) * weight; elsewhere, as in MMEngine, "
                f"it is the share of the new weight. If that is what {value!r} means, write {round(1 - value, 12)!r}."
            )
        return value
