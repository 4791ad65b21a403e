"""The settings of the hooks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hookbus import HookConfig
from hookbus_runtime.durations import seconds_of

__all__ = [
    "EmptyCacheConfig",
    "GarbageCollectionConfig",
    "MeanTeacherConfig",
    "OutOfMemoryConfig",
    "TimeLimitConfig",
]


class EmptyCacheConfig(HookConfig):
    """When cached memory is given back."""

    before_epoch: bool = Field(default=False, description="Before each epoch of training, validation and test.")
    after_epoch: bool = Field(default=True, description="After each epoch of training, validation and test.")
    after_iter: bool = Field(default=False, description="After each iteration or batch; slow.")


class GarbageCollectionConfig(HookConfig):
    """When garbage is collected."""

    interval: int = Field(default=50, ge=1, description="Collect after every this many iterations, and not in between.")
    generation: Literal[0, 1, 2] = Field(default=1, description="How much is looked through; 2 is everything.")


class MeanTeacherConfig(HookConfig):
    """How the teacher follows."""

    momentum: float = Field(
        default=0.001, gt=0, le=1, description="Share of the student in each update of the teacher."
    )
    interval: int = Field(default=1, ge=1, description="Update the teacher every this many optimizer steps.")
    skip_buffer: bool = Field(
        default=True, description="Whether buffers are left alone; otherwise they follow as well."
    )
    teacher: str = Field(default="teacher", min_length=1, description="The name of the teacher in the model.")
    student: str = Field(default="student", min_length=1, description="The name of the student in the model.")

    @model_validator(mode="before")
    @classmethod
    def _other_spelling(cls, data: Any) -> Any:
        if isinstance(data, dict) and "skip_buffers" in data:
            if "skip_buffer" in data:
                raise ValueError("skip_buffers: it is another spelling of skip_buffer: give one of them.")
            return {**{k: v for k, v in data.items() if k != "skip_buffers"}, "skip_buffer": data["skip_buffers"]}
        return data


class TimeLimitConfig(HookConfig):
    """How long a training may take."""

    max_time: str | int | float = Field(default="24h", description='"4h", "1h30m", "2d", "04:30:00", or seconds.')
    per_run: bool = Field(
        default=False,
        description="Count from the start of this process's run, not the whole training with its resumes.",
    )

    @field_validator("max_time")
    @classmethod
    def _positive(cls, value: str | int | float) -> str | int | float:
        seconds_of(value)
        return value


class OutOfMemoryConfig(HookConfig):
    """What is done about a batch that does not fit into the memory of the device."""

    retry: bool = Field(
        default=False, description="Train on the batch again in smaller parts, and on later ones so too."
    )
    reduction: Literal["mean", "sum"] = Field(
        default="mean", description="What the loss is over the samples; parts are weighted so that gradients add up."
    )
