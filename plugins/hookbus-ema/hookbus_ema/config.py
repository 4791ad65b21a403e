"""Configuration of the EMA hook."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from hookbus import HookConfig


class EMAConfig(HookConfig):
    """Momentum, update interval, initial averages, and device of the moving average."""

    # The common key `frequency` counts iterations; an update per N optimizer steps is `interval`.
    frequency_error = "updates are counted by `interval`. Set `interval: {value}`."
    # Momentum and warm-up assume equal intervals; with a gap, the average is that of weights from before the gap.
    when_error = "updates are counted by `interval`. Set `interval` instead."

    momentum: float = Field(
        default=0.9999, ge=0, lt=1, description="Weight of the old average in each update; at least 0.5."
    )
    interval: int = Field(default=1, ge=1, description="Update the average every N optimizer steps.")
    start_step: int = Field(
        default=0, ge=0, description="Start the average at the weights after N optimizer steps; 0: the initial weights."
    )
    start_epoch: int = Field(
        default=0, ge=0, description="Start the average at the weights after N epochs, instead of steps."
    )
    warm_up: int = Field(
        default=100, ge=0, description="Limit the momentum to (1 + i) / (warm_up + i) at step i; 0: no warm-up."
    )
    resume_from: str | None = Field(
        default=None,
        description="Checkpoint that initializes the averages of a new run; default: the weights of the model.",
    )
    update_buffers: bool = Field(
        default=False, description="Average floating-point buffers as well, instead of copying them."
    )
    device: Literal["cpu"] | None = Field(
        default=None, description="Device of the averages: cpu; default: the device of the weights."
    )
    overlap: bool = Field(
        default=False, description="Experimental: update on another thread during the next forward and backward."
    )

    @field_validator("momentum")
    @classmethod
    def _check_momentum(cls, value: float) -> float:
        # A small value is almost always the opposite convention, which would train without any error.
        if value < 0.5:
            raise ValueError(
                f"must be at least 0.5, got {value!r}. Here momentum is the weight of the old average: average = "
                f"momentum * average + (1 - momentum) * weight. If {value!r} is the weight of the new value, as in "
                f"MMEngine, set {round(1 - value, 12)!r}."
            )
        return value

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.start_step and self.start_epoch:
            raise ValueError(
                f"start_epoch: cannot be combined with `start_step`, got {self.start_epoch} and {self.start_step}. Set "
                "one of them."
            )
        if self.resume_from is not None and (self.start_step or self.start_epoch):
            raise ValueError(
                "resume_from: the averages of the checkpoint are used from the first step on, but the average starts "
                f"later, got {self.resume_from!r}. Remove `resume_from`, or `start_step` and `start_epoch`."
            )
        return self
