"""Configuration of the guards."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hookbus import HookConfig


class CheckInvalidLossConfig(HookConfig):
    """Check interval and policy for a loss that is not finite."""

    frequency_error = "the loss is checked every `interval` iterations. Set `interval: {value}`."

    interval: int = Field(
        default=50, ge=1, description="Check every N iterations; each check copies one value from the device."
    )
    policy: Literal["raise", "skip", "stop"] = Field(
        default="raise",
        description="Raise an error, skip the micro-batch, or stop without a checkpoint of invalid weights.",
    )
    before_step: bool = Field(
        default=False, description="Check before the backward pass, so that no optimizer step uses an invalid loss."
    )
    max_skips: int = Field(
        default=10,
        ge=1,
        description="With `policy: skip`: raise an error after more than N consecutive skips.",
    )

    @model_validator(mode="after")
    def _validate_policy(self) -> Self:
        if self.policy != "skip" and not self.is_default("max_skips"):
            raise ValueError(
                f"max_skips: no effect with policy {self.policy}, got {self.max_skips}. Set `policy: skip`, or remove "
                "`max_skips`."
            )
        if self.policy == "skip" and self.interval != 1:
            raise ValueError(
                f"interval: policy skip requires interval: 1, got {self.interval}, because a single optimizer step "
                "with an invalid loss corrupts the weights. Set `interval: 1`."
            )
        # A schedule may be due at one of the two points of an iteration only, and `skip` has to check every loss.
        if self.checks_before_step and self.when is not None:
            cause = "policy skip checks every loss" if self.policy == "skip" else "before_step checks it at two points"
            raise ValueError(f"when: not supported, got {self.when!r}, because {cause}. Set `interval` instead.")
        return self

    @property
    def checks_before_step(self) -> bool:
        """Whether the loss is checked before the backward pass."""
        return self.before_step or self.policy == "skip"

    @property
    def skips_batch(self) -> bool:
        """Whether an invalid loss skips the backward pass while the iteration continues to its end."""
        return self.checks_before_step and self.policy != "raise"


class NumClassCheckConfig(HookConfig):
    """Modules whose class count may differ from the data."""

    exclude: list[str] = Field(
        default=["rpn_head", "VGG", "FusedSemanticHead"],
        description="Modules to ignore: suffixes of module names, or class names.",
    )


class StartupCheckConfig(HookConfig):
    """Switches of the checks at the start of a training."""

    when_error = "the checks belong to the start of the training. Set `label_batches` to the number of iterations."
    effective_with = (("num_classes", "labels"), ("ignore_index", "labels"), ("label_batches", "labels"))

    labels: bool = Field(default=True, description="Raise an error if a label is outside the class range.")
    loaders: bool = Field(default=True, description="Raise an error if a loader has no batches.")
    gradients: bool = Field(default=True, description="Log a warning for trainable parameters without gradient.")
    optimizer: bool = Field(
        default=True, description="Raise an error if a trainable parameter is missing from the optimizer."
    )
    num_classes: int | None = Field(
        default=None, ge=1, description="Number of classes; default: `num_classes` of the model, or that of the data."
    )
    ignore_index: int = Field(default=-100, description="Label that is ignored by the loss and by the check.")
    label_batches: int = Field(default=10, ge=1, description="Check the labels of the first N iterations.")
