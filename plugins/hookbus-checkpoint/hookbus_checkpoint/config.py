"""Configuration of the checkpoint and preemption hooks."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from hookbus import Direction, Duration, HookConfig, parse_duration
from hookbus.metrics import ambiguous_direction_message, infer_direction, is_training_metric
from hookbus_checkpoint.file_names import (
    CLOCK_FIELDS,
    ITERATION_TEMPLATE,
    NUMBER_FIELDS,
    check_template,
    format_name,
    get_fields,
    get_file_stem,
)

DEFAULT_METRIC = "accuracy"
DEFAULT_SIGNALS = [name for name in ("SIGTERM", "SIGUSR1", "SIGBREAK") if name in signal.Signals.__members__]
"""Signals of SLURM and cloud providers. Windows has SIGBREAK (Ctrl+Break) instead of SIGUSR1."""


def _check_template(value: str, info: ValidationInfo) -> str:
    return check_template(value, by_epoch=info.data.get("by_epoch", True))


class CheckpointConfig(HookConfig):
    """Schedule, content, names and retention of checkpoints."""

    when_error = (
        "checkpoints of epochs and of iterations have separate schedules. Set `interval` and `by_epoch`, or `every` "
        "for a duration."
    )

    effective_with = (("rule", "save_best"), ("save_top_k", "save_best"), ("keep_every", "max_keep_ckpts"))

    interval: int | None = Field(
        default=1, ge=1, description="Save every N epochs (or iterations); null: no periodic checkpoints."
    )
    by_epoch: bool = Field(default=True, description="Whether the interval counts epochs; false: iterations.")
    save_optimizer: bool = Field(default=True, description="Whether checkpoints contain the state of the optimizer.")
    save_scheduler: bool = Field(default=True, description="Whether checkpoints contain the state of the scheduler.")
    max_keep_ckpts: int | None = Field(
        default=5, ge=1, description="Maximum number of periodic checkpoints to keep; null: keep all."
    )
    save_last: bool = Field(default=True, description="Whether last.pth is the latest checkpoint.")
    save_best: bool | str | list[str] | dict[str, Direction] = Field(
        default=True,
        description=(
            "Keep the best checkpoint: by best_metric (true), by these metrics, each with its rule or not, or `auto`."
        ),
    )
    save_top_k: int = Field(
        default=1,
        ge=-1,
        description="Number of checkpoints with the best results to keep per metric; 0: none, -1: all.",
    )
    best_metric: str = Field(default=DEFAULT_METRIC, description="Metric of the best checkpoint.")
    rule: Direction | None = Field(
        default=None, description="Which value is better; default: inferred from the name of the metric."
    )
    out_dir: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "Checkpoint directory; a relative path is below the work directory. Default: `checkpoints` there."
        ),
    )
    filename_tmpl: Annotated[str, AfterValidator(_check_template)] | None = Field(
        default=None,
        description=(
            "Name of periodic checkpoints: `{}`, `{epoch}`, `{iter}`, `{step}`, `{sample}`, and metrics as in "
            "`{val_loss:.2f}`. Default: `epoch_{}.pth`, or `iter_{}.pth`."
        ),
    )
    every: Duration | None = Field(
        default=None, description="Also save after a duration: `30min`, `1h30m` or seconds, rounded up to seconds."
    )
    keep_every: int | None = Field(
        default=None, ge=1, description="Never remove periodic checkpoints whose number is a multiple of this value."
    )
    async_save: bool | Literal["overlap"] = Field(
        default=False, description="Write on another thread (true); also copy the weights there (`overlap`)."
    )
    on_save_error: Literal["raise", "warn"] = Field(
        default="raise", description="Whether a failed save ends the run or logs a warning."
    )
    save_on_exception: bool = Field(
        default=False,
        description="Save the state of the last iteration if the run fails before its next optimizer step.",
    )
    publish: bool = Field(
        default=False, description="Write the best weights to model.safetensors when the training ends."
    )

    @model_validator(mode="after")
    def _check_direction(self) -> Self:
        if isinstance(self.save_best, dict) and self.rule is not None:
            raise ValueError(
                f"rule: no effect if `save_best` contains the rule of each metric, got {self.rule!r}. Remove `rule`."
            )
        for metric in self.metrics:
            if self.get_rule(metric) is None:
                raise ValueError(f"rule: {ambiguous_direction_message(metric, 'Set `rule` to greater or less')}")
        return self

    @model_validator(mode="after")
    def _check_best_metric(self) -> Self:
        if self.save_best is not True and not self.is_default("best_metric"):
            raise ValueError(
                f"best_metric: no effect with save_best {self.save_best!r}, got {self.best_metric!r}. Set `save_best: "
                "true`, or remove `best_metric`."
            )
        for setting in ("save_best", "best_metric", "rule"):
            if self.save_top_k == 0 and not self.is_default(setting):
                raise ValueError(
                    f"{setting}: no effect with `save_top_k: 0`, got {getattr(self, setting)!r}. Set `save_top_k` to 1 "
                    f"or more, or remove `{setting}`."
                )
        return self

    @model_validator(mode="after")
    def _check_frequency(self) -> Self:
        # Both are conditions of one listener: a save that is due by time would wait for a multiple of `frequency`.
        if self.every is not None and not self.by_epoch and self.frequency not in (None, 1):
            raise ValueError(
                f"frequency: cannot be combined with `every`, got {self.frequency}, because saves after a duration "
                "would be skipped. Set `interval` instead."
            )
        return self

    @model_validator(mode="after")
    def _check_file_names(self) -> Self:
        # Formatted, because `iter_{:d}.pth` denotes the same files.
        if self.by_epoch and format_name(self.template, 1, lambda _: 1) == ITERATION_TEMPLATE.format(1):
            raise ValueError(
                f"filename_tmpl: reserved for checkpoints of iterations because by_epoch is true, got "
                f"{self.template!r}. Set another name."
            )
        # Without the case, which macOS and Windows do not distinguish.
        stems = [get_file_stem(metric).casefold() for metric in self.metrics]
        if len(set(stems)) < len(stems):
            raise ValueError(
                f"save_best: metrics must have different file names, got {', '.join(self.metrics)}. Remove one of them."
            )
        return self

    @property
    def metrics(self) -> list[str]:
        """Metrics whose best checkpoint is kept; empty for none, and for `auto` until the first validation."""
        if not self.keeps_best or self.save_best == "auto":
            return []
        if self.save_best is True:
            return [self.best_metric]
        return [self.save_best] if isinstance(self.save_best, str) else list(self.save_best or ())

    @property
    def keeps_best(self) -> bool:
        """Whether best checkpoints are kept, also those that other hooks request."""
        return self.save_best is not False and self.save_top_k != 0

    def get_rule(self, metric: str) -> Direction | None:
        """Return which result of a metric is better; None if it is neither configured nor implied by the name."""
        configured = self.save_best.get(metric) if isinstance(self.save_best, dict) else self.rule
        return configured or infer_direction(metric)

    @property
    def has_default_metric(self) -> bool:
        """Whether the metric is the default one, which a validation need not provide."""
        # By value: a default and the same value written out have the same effect.
        return self.save_best is True and self.best_metric == DEFAULT_METRIC

    @property
    def seconds(self) -> int | None:
        """Duration between saves in seconds, None if `every` is not set."""
        return None if self.every is None else math.ceil(parse_duration(self.every))

    @property
    def saves_epochs_only(self) -> bool:
        """Whether periodic checkpoints are saved after epochs, and not after iterations or a duration."""
        return self.by_epoch and self.interval is not None and self.every is None

    @property
    def template(self) -> str:
        """Name of periodic checkpoints with fields."""
        return self.filename_tmpl or ("epoch_{}.pth" if self.by_epoch else ITERATION_TEMPLATE)

    @property
    def name_metrics(self) -> list[str]:
        """Metrics in the names of periodic checkpoints."""
        return [field for field in get_fields(self.template) if field not in NUMBER_FIELDS | {*CLOCK_FIELDS}]

    @property
    def validation_metrics(self) -> list[str]:
        """Metrics that every validation has to provide: those of best checkpoints and names, but not the default."""
        best = [] if self.has_default_metric else self.metrics
        return [name for name in dict.fromkeys([*best, *self.name_metrics]) if not is_training_metric(name)]

    def file_name(self, unit: str, number: int, get_value: Callable[[str], float]) -> str:
        """Return the name of a periodic checkpoint.

        Args:
            unit: "epoch" or "iteration".
            number: Number of completed units.
            get_value: Function that returns the value of a field with a name.
        """
        return format_name(self.template if self._counts(unit) else ITERATION_TEMPLATE, number, get_value)

    def is_pinned(self, unit: str, number: int) -> bool:
        """Whether a periodic checkpoint is never removed; `keep_every` counts the same unit as `interval`."""
        return self.keep_every is not None and self._counts(unit) and number % self.keep_every == 0

    def _counts(self, unit: str) -> bool:
        return self.by_epoch == (unit == "epoch")


class PreemptionConfig(HookConfig):
    """Signals that announce the preemption of the machine."""

    signals: list[str] = Field(default=DEFAULT_SIGNALS, min_length=1, description="Names of signals.")

    @field_validator("signals")
    @classmethod
    def _check_signals(cls, value: list[str]) -> list[str]:
        known = signal.Signals.__members__
        # POSIX does not allow handlers for SIGKILL and SIGSTOP.
        unknown = [name for name in value if name not in known or name in ("SIGKILL", "SIGSTOP")]
        if unknown:
            raise ValueError(
                f"must be signals that a process can handle, got {', '.join(unknown)}. Set names such as SIGTERM."
            )
        return value
