"""Configuration of the hooks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from hookbus import HookConfig
from hookbus.writers import WriterConfig


class RecordConfig(WriterConfig):
    """Interval at which training metrics are logged."""

    interval: int = Field(default=50, gt=0, description="Number of iterations between two records.")
    by_epoch: bool = Field(default=True, description="Count the interval within each epoch (else over the whole run).")
    ignore_last: bool = Field(
        default=True,
        description="Drop the incomplete interval at the end of an epoch, except if it is the epoch's only record or "
        "the run ends. Ignored if `by_epoch` is false.",
    )

    @classmethod
    def get_schedule_settings(cls) -> tuple[str, ...]:
        """Return the settings without effect with one record per epoch."""
        return (*super().get_schedule_settings(), "by_epoch", "ignore_last")


class LoggerConfig(RecordConfig):
    """Configuration of `LoggerHook`."""

    log_metric_by_epoch: bool = Field(
        default=True, description="Label validation results by epoch (else by iteration)."
    )
    interval_lines: bool | None = Field(
        default=None,
        description="Print a line every `interval` iterations. Default: only if the output is not a terminal.",
    )


class JsonlConfig(RecordConfig):
    """Configuration of `JsonlHook`."""

    path: Path | None = Field(
        default=None,
        description=(
            "Path of the file; "
            "a relative path is below the work directory. Default: metrics.jsonl in the run's logs directory."
        ),
    )


class CsvConfig(RecordConfig):
    """Configuration of `CsvHook`."""

    path: Path | None = Field(
        default=None,
        description=(
            "Path of the file; "
            "a relative path is below the work directory. Default: metrics.csv in the run's logs directory."
        ),
    )
    separator: str = Field(default=",", description="Character between two cells, such as a tab or a semicolon.")
    append: bool = Field(
        default=False,
        description="Append the rows to an existing file of another run; false: use another name, with a warning.",
    )

    @field_validator("separator")
    @classmethod
    def _check_separator(cls, value: str) -> str:
        if len(value) != 1 or value.isalnum() or not value.isascii() or value in "\"'+-._/\r\n\0":
            raise ValueError(
                f"must be one character that is in no number or name, got {value!r}. Set `,`, `;` or a tab."
            )
        return value


class ProgressConfig(HookConfig):
    """Configuration of `ProgressHook`."""

    interval: int = Field(
        default=50, gt=0, description="Number of iterations over which the displayed loss is averaged."
    )
    refresh_per_second: float = Field(
        default=4.0, gt=0, le=30, description="Number of refreshes of the bar per second in a terminal."
    )
    line_every: float = Field(
        default=30.0, gt=0, description="Seconds between plain lines if the output is not a terminal."
    )
