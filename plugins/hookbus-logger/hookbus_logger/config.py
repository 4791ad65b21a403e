"""The settings of the hooks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hookbus import HookConfig

__all__ = ["JsonlConfig", "LoggerConfig", "ProgressConfig", "RecordConfig"]


class RecordConfig(HookConfig):
    """When a record of training is made."""

    interval: int = Field(default=50, gt=0, description="A record every this many iterations.")
    by_epoch: bool = Field(
        default=True, description="Whether the interval counts within each epoch (else over the whole run)."
    )
    ignore_last: bool = Field(
        default=True,
        description="Whether what is left at the end of an epoch is dropped, except as the epoch's only record and at "
        "the end of the run. Only where the interval counts within epochs.",
    )


class LoggerConfig(RecordConfig):
    """What appears on the console."""

    log_metric_by_epoch: bool = Field(
        default=True, description="Whether results of validations are labelled by epoch (else by iteration)."
    )


class JsonlConfig(RecordConfig):
    """What is written into the file of JSON lines."""

    path: Path | None = Field(default=None, description="The file; default metrics.jsonl among the logs of the run.")


class ProgressConfig(HookConfig):
    """How often progress is shown."""

    interval: int = Field(default=50, gt=0, description="The loss that is shown is a mean over this many iterations.")
    refresh_per_second: float = Field(
        default=4.0, gt=0, le=30, description="How often the bar is drawn again in a terminal."
    )
    line_every: float = Field(
        default=30.0, gt=0, description="Seconds between plain lines where the output is not a terminal."
    )
