"""Configuration of the runtime hooks."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hookbus import Duration, HookConfig


class EmptyCacheConfig(HookConfig):
    """Points at which cached device memory is released."""

    before_epoch: bool = Field(default=False, description="Before each epoch of training, validation and test.")
    after_epoch: bool = Field(default=True, description="After each epoch of training, validation and test.")
    after_iter: bool = Field(default=False, description="After each iteration or batch; slow.")

    @model_validator(mode="after")
    def _check_points(self) -> Self:
        if not (self.before_epoch or self.after_epoch or self.after_iter):
            raise ValueError("after_epoch: all points are disabled, so the hook has no effect. Set one to true.")
        if self.frequency not in (None, 1) and not self.after_iter:
            raise ValueError(
                f"frequency: no effect without after_iter, got {self.frequency}, because it counts iterations. Set "
                "`after_iter: true`, or remove `frequency`."
            )
        return self


class GarbageCollectionConfig(HookConfig):
    """Interval and generation of garbage collections."""

    interval: int = Field(default=50, ge=1, description="Collect garbage every N iterations, and not in between.")
    generation: Literal[0, 1, 2] = Field(
        default=1, description="Oldest generation to collect, see `gc.collect`; 2 is a full collection."
    )


class MeanTeacherConfig(HookConfig):
    """Momentum, update interval and module names of the mean teacher."""

    frequency_error = "updates are counted by `interval`. Set `interval: {value}`."

    momentum: float = Field(
        default=0.001, gt=0, le=1, description="Weight of the student in each update of the teacher."
    )
    interval: int = Field(default=1, ge=1, description="Update the teacher every N optimizer steps.")
    skip_buffer: bool = Field(
        default=True, description="Leave the buffers of the teacher unchanged; false: update them."
    )
    teacher: str = Field(default="teacher", min_length=1, description="Name of the teacher module in the model.")
    student: str = Field(default="student", min_length=1, description="Name of the student module in the model.")

    @model_validator(mode="before")
    @classmethod
    def _resolve_alias(cls, data: Any) -> Any:
        # MMEngine names the option `skip_buffers`.
        if isinstance(data, dict) and "skip_buffers" in data:
            if "skip_buffer" in data:
                raise ValueError("skip_buffers: alias of skip_buffer, got both. Remove one of them.")
            return {**{k: v for k, v in data.items() if k != "skip_buffers"}, "skip_buffer": data["skip_buffers"]}
        return data


class TimeLimitConfig(HookConfig):
    """Maximum training time."""

    max_time: Duration = Field(default="24h", description='"4h", "1h30m", "2d", "04:30:00", or seconds.')
    per_run: bool = Field(
        default=False,
        description="Count from the start of the current run, instead of the training time including resumed runs.",
    )


class OutOfMemoryConfig(HookConfig):
    """Retry of batches that exceed the device memory."""

    effective_with = (("reduction", "retry"),)

    retry: bool = Field(
        default=False, description="Repeat the batch in smaller parts, and split later batches in the same way."
    )
    reduction: Literal["mean", "sum"] = Field(
        default="mean", description="Reduction of the loss over samples; determines the weight of each part."
    )
