"""Configuration of the hooks."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hookbus import HookConfig


class LRFinderConfig(HookConfig):
    """Configuration of `LRFinderHook`."""

    when_error = "the range test is executed once, before the training."
    frequency_error = when_error

    min_lr: float = Field(default=1e-8, gt=0, allow_inf_nan=False, description="First learning rate.")
    max_lr: float = Field(default=1.0, gt=0, allow_inf_nan=False, description="Last learning rate.")
    num_training_steps: int = Field(default=100, ge=4, description="Number of optimizer steps of the test.")
    mode: Literal["exponential", "linear"] = Field(
        default="exponential", description="Growth of the learning rate: by a constant factor or difference."
    )
    early_stop_threshold: float | None = Field(
        default=4.0,
        gt=1,
        description="End the test once the smoothed loss exceeds this multiple of the smallest one; null for never.",
    )
    smoothing: float = Field(
        default=0.98, ge=0, lt=1, description="Weight of the earlier losses in the moving average; 0 for none."
    )
    apply: bool = Field(default=False, description="Whether to train with the suggested learning rate.")
    save_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Directory of the plot and the table; a relative path is below the visualization directory of the "
        "run. Default: a directory there with the name of the hook.",
    )

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.min_lr >= self.max_lr:
            raise ValueError(f"max_lr: expected a number > min_lr ({self.min_lr}), got {self.max_lr}")
        return self


class BatchSizeFinderConfig(HookConfig):
    """Configuration of `BatchSizeFinderHook`."""

    when_error = "the search is executed once, before the training."
    frequency_error = when_error

    mode: Literal["power", "binsearch"] = Field(
        default="power",
        description="Search: double the size as long as it fits; `binsearch` then bisects up to the largest size.",
    )
    steps_per_trial: int = Field(default=3, ge=1, description="Number of optimizer steps with each size.")
    init_val: int = Field(default=2, ge=1, description="First size. If it does not fit, smaller ones are tried.")
    max_trials: int = Field(default=25, ge=1, description="Maximum number of sizes to try.")
    margin: float = Field(
        default=0.05, ge=0, lt=1, description="Fraction by which the result is less than the largest size that fits."
    )
    max_val: int = Field(default=8192, ge=1, description="Largest size to try.")
    apply: bool = Field(default=False, description="Whether to train with the size that is found.")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.init_val > self.max_val:
            raise ValueError(f"init_val: expected at most max_val ({self.max_val}), got {self.init_val}")
        return self
