"""Configuration of the early stopping hook."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from hookbus import HookConfig
from hookbus.metrics import ambiguous_direction_message, infer_direction, is_training_metric
from hookbus_early_stopping.stopping_rule import DeltaMode, Mode, StoppingRule

DEFAULT_PATIENCE = 10
RULE_SETTINGS = {
    *("patience", "min_delta", "min_delta_mode", "cumulative_delta", "baseline", "check_finite"),
    *("stopping_threshold", "divergence_threshold"),
}
"""Settings that are arguments of `StoppingRule`."""


class EarlyStoppingConfig(HookConfig):
    """Monitored metric, stopping criteria, and source of the best weights."""

    # A score that is left out would change the meaning of `patience`.
    frequency_error = (
        "the metric is evaluated at every validation or training epoch. Set `patience`, or validate less often."
    )

    effective_with = (("min_delta_mode", "min_delta"), ("cumulative_delta", "min_delta"))

    monitor: str = Field(
        default="val_loss", description="Monitored metric of validations, or mean of training epochs: `train/loss`."
    )
    patience: int = Field(
        default=DEFAULT_PATIENCE,
        ge=0,
        description="Number of consecutive scores without improvement after which to stop; 0 acts as 1.",
    )
    min_delta: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Minimum change that counts as an improvement, exclusive; see `min_delta_mode`.",
    )
    min_delta_mode: DeltaMode = Field(
        default="abs",
        description="Unit of `min_delta`: that of the metric (abs), or a fraction of the absolute best score (rel).",
    )
    cumulative_delta: bool = Field(
        default=True,
        description="Add up consecutive gains that do not exceed `min_delta`; false: each gain has to exceed it.",
    )
    mode: Literal["min", "max", "auto"] = Field(
        default="auto",
        description="Whether lower (min) or higher (max) is better; auto: inferred from the name of the metric.",
    )
    baseline: float | None = Field(
        default=None, allow_inf_nan=False, description="Initial best score, which the first improvement has to beat."
    )
    restore_best_weights: bool | Literal["memory", "file"] = Field(
        default=True,
        description="Restore the best weights after training: from memory (true), from the best checkpoint, or never.",
    )
    check_finite: bool = Field(default=True, description="Stop immediately if the metric is NaN or infinite.")
    stopping_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="Stop immediately if the metric is at least this good."
    )
    divergence_threshold: float | None = Field(
        default=None, allow_inf_nan=False, description="Stop immediately if the metric is at least this bad."
    )
    start_from_epoch: int = Field(
        default=0,
        ge=0,
        description="Number of epochs at the start whose scores are ignored: they neither set the best score, nor "
        "count for `patience`, nor stop.",
    )
    min_epochs: int = Field(default=0, ge=0, description="Minimum number of epochs before a stop.")
    min_steps: int = Field(default=0, ge=0, description="Minimum number of optimizer steps before a stop.")
    strict: bool = Field(default=True, description="Raise an error if the metric is missing; false: log one warning.")

    @model_validator(mode="after")
    def _check_direction(self) -> Self:
        if self.mode == "auto" and infer_direction(self.monitor) is None:
            raise ValueError(f"mode: {ambiguous_direction_message(self.monitor, 'Set `mode` to min or max')}")
        return self

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.start_from_epoch and self.best_weights_source == "file":
            raise ValueError(
                "restore_best_weights: file requires `start_from_epoch: 0`, because the best checkpoint can be of an "
                f"ignored epoch, got {self.start_from_epoch}. Set `restore_best_weights: memory`."
            )
        return self

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        good, bad = self.stopping_threshold, self.divergence_threshold
        if good is None or bad is None:
            return self
        # Both thresholds are inclusive: if they are equal, no score lies between them.
        if good >= bad if self.direction == "min" else good <= bad:
            relation = "less" if self.direction == "min" else "greater"
            raise ValueError(
                f"stopping_threshold: must be {relation} than divergence_threshold {bad} because {relation} is better, "
                f"got {good}. As configured, every score would end the run."
            )
        return self

    @property
    def direction(self) -> Mode:
        """Direction of improvement: "min" if lower is better, "max" if higher is better."""
        if self.mode != "auto":
            return self.mode
        return "min" if infer_direction(self.monitor) == "less" else "max"

    @property
    def monitors_training(self) -> bool:
        """Whether the metric is the mean of a training epoch, and not a result of validations."""
        return is_training_metric(self.monitor)

    @property
    def occasion(self) -> str:
        """What a score is measured in, for messages: "validation", or "epoch" for a training metric."""
        return "epoch" if self.monitors_training else "validation"

    @property
    def best_weights_source(self) -> Literal["memory", "file"] | None:
        """Source of the best weights, None if they are not restored."""
        source = self.restore_best_weights
        if isinstance(source, bool):
            return "memory" if source else None
        return source

    @property
    def min_scores(self) -> int:
        """Smallest number of scores after which `patience` can stop the run; 0 if it is not the only criterion."""
        # The default was not chosen for the length of the run.
        if self.patience == DEFAULT_PATIENCE or (self.stopping_threshold, self.divergence_threshold) != (None, None):
            return 0
        # Without a baseline the first score has nothing to improve on.
        return max(self.patience, 1) + (self.baseline is None)

    def build_stopping_rule(self) -> StoppingRule:
        """Create a stopping rule with these settings and no scores."""
        return StoppingRule(self.direction, occasion=self.occasion, **self.model_dump(include=RULE_SETTINGS))
