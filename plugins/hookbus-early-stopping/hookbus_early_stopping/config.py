"""The settings of the hook."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hookbus import HookConfig
from hookbus.rules import infer_rule, undecided
from hookbus_early_stopping.decision import Decision, Mode

__all__ = ["EarlyStoppingConfig"]


class EarlyStoppingConfig(HookConfig):
    """What is watched, when it is time to stop, and which weights stay."""

    no_frequency = "it judges every validation: say patience for how many, or validate less often."

    monitor: str = Field(default="val_loss", description="The metric that decides.")
    patience: int = Field(
        default=10, ge=0, description="Stop after this many validations in a row without improvement; 0 acts as 1."
    )
    min_delta: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="An improvement is more than this, in the metric's unit."
    )
    mode: Literal["min", "max", "auto"] = Field(
        default="auto", description="Whether less or more is better; auto: what the metric's name says."
    )
    baseline: float | None = Field(
        default=None, allow_inf_nan=False, description="What the first score has to improve on."
    )
    restore_best_weights: bool | Literal["memory", "file"] = Field(
        default=True,
        description="Whether the best weights come back at the end: from memory (true), or from the best checkpoint.",
    )
    check_finite: bool = Field(default=True, description="Stop at once where the metric is NaN or infinite.")
    stopping_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="Stop at once where the metric is this good."
    )
    divergence_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="Stop at once where the metric is this bad."
    )
    min_epochs: int = Field(default=0, ge=0, description="Never stop before this many epochs are done.")
    strict: bool = Field(
        default=True, description="A validation without the metric is an error; otherwise one warning."
    )

    @model_validator(mode="after")
    def _known_direction(self) -> Self:
        if self.mode == "auto" and infer_rule(self.monitor) is None:
            raise ValueError(f"mode: {undecided(self.monitor, 'say min or max')}")
        return self

    @model_validator(mode="after")
    def _thresholds_leave_room(self) -> Self:
        good, hopeless = self.stopping_threshold, self.divergence_threshold
        if good is None or hopeless is None:
            return self
        if good >= hopeless if self.direction == "min" else good <= hopeless:
            where = "less" if self.direction == "min" else "more"
            raise ValueError(
                f"stopping_threshold: {good} must be {where} than divergence_threshold {hopeless}, since {where} is "
                "better here; as they are, every score would end the run."
            )
        return self

    @property
    def direction(self) -> Mode:
        """Whether less or more is better."""
        if self.mode != "auto":
            return self.mode
        return "min" if infer_rule(self.monitor) == "less" else "max"

    @property
    def best_weights(self) -> Literal["memory", "file"] | None:
        """Where the best weights come back from; None where they do not."""
        kept = self.restore_best_weights
        if isinstance(kept, bool):
            return "memory" if kept else None
        return kept

    def decision(self) -> Decision:
        """A decision that has seen nothing yet."""
        return Decision(
            self.direction,
            patience=self.patience,
            min_delta=self.min_delta,
            baseline=self.baseline,
            check_finite=self.check_finite,
            stopping_threshold=self.stopping_threshold,
            divergence_threshold=self.divergence_threshold,
        )
