"""The settings of the hooks."""

from __future__ import annotations

import signal
import string
from typing import Self

from pydantic import Field, field_validator, model_validator

from hookbus import HookConfig
from hookbus_checkpoint.rules import Rule, infer_rule

__all__ = ["CheckpointConfig", "PreemptionConfig"]


class CheckpointConfig(HookConfig):
    """When checkpoints are written, what they are called, and which are kept."""

    interval: int | None = Field(default=1, ge=1, description="Save every this many epochs; null: no periodic files.")
    by_epoch: bool = Field(default=True, description="Whether the interval counts epochs (else iterations).")
    save_optimizer: bool = Field(default=True, description="Whether files hold the optimizer's state.")
    save_scheduler: bool = Field(default=True, description="Whether files hold the scheduler's state.")
    max_keep_ckpts: int | None = Field(default=5, ge=1, description="Periodic files that are kept; null: all of them.")
    save_last: bool = Field(default=True, description="Whether last.pth is the newest checkpoint.")
    save_best: bool | str | list[str] = Field(
        default=True, description="Whether the best is kept: by best_metric (true), by these metrics, or `auto`."
    )
    best_metric: str = Field(default="accuracy", description="The metric that decides which is the best.")
    rule: Rule | None = Field(default=None, description="Which score is better; default what the metric's name says.")
    out_dir: str | None = Field(default=None, description="Where files go; default `checkpoints` in the work dir.")
    filename_tmpl: str | None = Field(
        default=None, description="Name of periodic files; default `epoch_{}.pth`, or `iter_{}.pth`."
    )

    @field_validator("filename_tmpl")
    @classmethod
    def _distinct_names(cls, value: str | None) -> str | None:
        if value is None:
            return None
        fields = [name for _, name, _, _ in string.Formatter().parse(value) if name is not None]
        if fields not in ([""], ["0"]) or "/" in value or not value.endswith(".pth"):
            raise ValueError(
                f"{value!r} must be a file name that ends in .pth and has one {{}} for the number, such as "
                "'epoch_{}.pth'; otherwise each file would overwrite the one before."
            )
        return value

    @model_validator(mode="after")
    def _known_direction(self) -> Self:
        for metric in self.metrics:
            if self.rule is None and infer_rule(metric) is None:
                raise ValueError(f"rule: {metric!r} does not tell whether greater or less is better: say rule.")
        return self

    @property
    def metrics(self) -> list[str]:
        """The metrics whose best is kept; empty for none, and where the first validation decides."""
        if isinstance(self.save_best, bool):
            return [self.best_metric] if self.save_best else []
        if isinstance(self.save_best, str):
            return [] if self.save_best == "auto" else [self.save_best]
        return list(self.save_best)

    @property
    def template(self) -> str:
        """The name of periodic files, with a place for the number."""
        return self.filename_tmpl or ("epoch_{}.pth" if self.by_epoch else "iter_{}.pth")


class PreemptionConfig(HookConfig):
    """Which signals announce that the machine will be taken away."""

    signals: list[str] = Field(default=["SIGTERM", "SIGUSR1"], min_length=1, description="Names of signals.")

    @field_validator("signals")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        known = signal.Signals.__members__
        unknown = [name for name in value if name not in known or name in ("SIGKILL", "SIGSTOP")]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: not a signal that a process can handle, such as SIGTERM.")
        return value
