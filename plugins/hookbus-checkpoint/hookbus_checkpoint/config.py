"""The settings of the hooks."""

from __future__ import annotations

import re
import signal
import string
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from hookbus import HookConfig
from hookbus.rules import Rule, infer_rule, undecided
from hookbus_checkpoint.rules import file_stem

__all__ = ["CheckpointConfig", "PreemptionConfig"]

DURATION = re.compile(r"(\d+)\s*(s|min|h|)")
SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}
OF_ITERATIONS = "iter_{}.pth"


def seconds_in(duration: str) -> int:
    """The seconds of a duration such as `30min`."""
    found = DURATION.fullmatch(duration)
    assert found is not None
    return int(found[1]) * SECONDS[found[2]]


def _tells_apart(template: str) -> bool:
    """Whether a template has one place for a number, and makes different names of different numbers."""
    try:
        places = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        names = {template.format(number) for number in (1, 2, 10, 11, 1_000_000, 1_000_001)}
    except (ValueError, LookupError, TypeError):
        return False
    return template.isprintable() and places in ([""], ["0"]) and len(names) == 6


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
    out_dir: str | None = Field(
        default=None, min_length=1, description="Where files go; default `checkpoints` in the work dir."
    )
    filename_tmpl: str | None = Field(
        default=None, description="Name of periodic files; default `epoch_{}.pth`, or `iter_{}.pth`."
    )
    every: str | None = Field(
        default=None, description="Save by the clock as well, such as `30min`: seconds, `s`, `min` or `h`."
    )
    keep_every: int | None = Field(
        default=None, ge=1, description="Periodic files with a multiple of this number are never removed."
    )
    async_save: bool | Literal["overlap"] = Field(
        default=False, description="Write on another thread (true); copy the weights there as well (`overlap`)."
    )
    on_save_error: Literal["raise", "warn"] = Field(
        default="raise", description="Whether a save that fails ends the run, or is reported and the run goes on."
    )
    publish: bool = Field(
        default=False, description="Whether the weights alone become model.safetensors when training ends: the best."
    )

    @field_validator("when")
    @classmethod
    def _has_schedules_of_its_own(cls, value: object) -> object:
        if value is not None:
            raise ValueError(
                "files of epochs and of iterations have each a schedule of their own, and one for both would mix them. "
                "Say interval and by_epoch; or every, for the clock."
            )
        return value

    @field_validator("every")
    @classmethod
    def _duration(cls, value: str | None) -> str | None:
        if value is not None and not (DURATION.fullmatch(value) and seconds_in(value)):
            raise ValueError(f"{value!r} is no duration of at least a second, such as 90s, 30min or 2h.")
        return value

    @field_validator("filename_tmpl")
    @classmethod
    def _distinct_names(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if "/" in value or not value.endswith(".pth") or value.startswith((".", "best_")) or not _tells_apart(value):
            raise ValueError(
                f"{value!r} must be a file name that ends in .pth, begins neither with a dot nor with best_, and has "
                "one {} for the number, such as 'epoch_{}.pth'; otherwise one file would overwrite another."
            )
        return value

    @model_validator(mode="after")
    def _known_direction(self) -> Self:
        for metric in self.metrics:
            if self.rule is None and infer_rule(metric) is None:
                raise ValueError(f"rule: {undecided(metric, 'say rule')}")
        return self

    @model_validator(mode="after")
    def _no_file_has_two_meanings(self) -> Self:
        if self.by_epoch and self.template.format(1) == OF_ITERATIONS.format(1):
            raise ValueError(
                f"filename_tmpl: {self.template!r} is what files of iterations are called, and by_epoch is true."
            )
        stems = [file_stem(metric) for metric in self.metrics]
        if len(set(stems)) < len(stems):
            raise ValueError(f"save_best: two of {', '.join(self.metrics)} would share one best file.")
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
    def names_metrics(self) -> bool:
        """Whether it was said which metrics they are, so that each of them must be there."""
        return "best_metric" in self.model_fields_set or not isinstance(self.save_best, bool)

    @property
    def seconds(self) -> int | None:
        """The interval by the clock."""
        return None if self.every is None else seconds_in(self.every)

    @property
    def template(self) -> str:
        """The name of periodic files, with a place for the number."""
        return self.filename_tmpl or ("epoch_{}.pth" if self.by_epoch else OF_ITERATIONS)

    def file_name(self, unit: str, number: int) -> str:
        """The name of a periodic file, by the "epoch" or the "iteration" that it stands on."""
        return (self.template if self._counts(unit) else OF_ITERATIONS).format(number)

    def pins(self, unit: str, number: int) -> bool:
        """Whether such a file is never removed; `keep_every` counts what `interval` counts."""
        return self.keep_every is not None and self._counts(unit) and number % self.keep_every == 0

    def _counts(self, unit: str) -> bool:
        return self.by_epoch == (unit == "epoch")


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
