"""The settings of the hooks."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hookbus import HookConfig

__all__ = ["CheckInvalidLossConfig", "NumClassCheckConfig", "StartupCheckConfig"]


class CheckInvalidLossConfig(HookConfig):
    """How often the loss is looked at, and what follows from one that is not finite."""

    interval: int = Field(
        default=50, ge=1, description="Look every this many iterations; each look waits for one number."
    )
    policy: Literal["raise", "skip", "stop"] = Field(
        default="raise",
        description="End with an error, skip the micro-batch, or stop without a checkpoint of broken weights.",
    )
    before_step: bool = Field(
        default=False, description="Look before the backward, so that no update is made with such a loss."
    )
    max_skips: int = Field(
        default=10, ge=1, description="With policy skip: more micro-batches in a row than this are an error."
    )

    @model_validator(mode="after")
    def _skips_all(self) -> Self:
        if self.policy == "skip" and self.interval != 1:
            raise ValueError(
                "interval: policy skip needs interval: 1, since one update with a loss that is not finite spoils the "
                "weights for good."
            )
        return self

    @property
    def looks_first(self) -> bool:
        """Whether the loss is looked at before the backward."""
        return self.before_step or self.policy == "skip"

    @property
    def leaves_out(self) -> bool:
        """Whether a loss that is not finite has no backward, and the iteration goes on to its end all the same."""
        return self.looks_first and self.policy != "raise"


class NumClassCheckConfig(HookConfig):
    """Which modules may have another number of classes than the data."""

    exclude: list[str] = Field(
        default=["rpn_head", "VGG", "FusedSemanticHead"],
        description="Modules that are left alone: ends of their names, or names of their classes.",
    )


class StartupCheckConfig(HookConfig):
    """What is looked at when a training begins; each check has its own switch."""

    labels: bool = Field(default=True, description="Whether labels have to be classes that there are.")
    loaders: bool = Field(default=True, description="Whether each loader has to have a batch.")
    gradients: bool = Field(default=True, description="Whether parameters without gradient are reported.")
    optimizer: bool = Field(default=True, description="Whether the optimizer has to have every trainable parameter.")
    num_classes: int | None = Field(
        default=None, ge=1, description="How many classes there are; default what the model or else the data says."
    )
    ignore_index: int = Field(default=-100, description="A label that means nothing, so that it is not looked at.")
    label_batches: int = Field(default=10, ge=1, description="Labels are looked at in this many first iterations.")
