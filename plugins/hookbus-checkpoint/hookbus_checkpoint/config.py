"""Configuration of the checkpoint and preemption hooks."""

from __future__ import annotations

import math
import re
import signal
import string
import unicodedata
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from hookbus import Direction, Duration, HookConfig, parse_duration
from hookbus.metrics import ambiguous_direction_message, infer_direction

ITERATION_TEMPLATE = "iter_{}.pth"
DEFAULT_METRIC = "accuracy"
RESERVED_TEXT = r'/ \ : * ? " < > |'
RESERVED_CHARACTERS = frozenset(RESERVED_TEXT.replace(" ", ""))
"""Characters that a file name cannot contain on Linux or Windows."""
DEFAULT_SIGNALS = [name for name in ("SIGTERM", "SIGUSR1", "SIGBREAK") if name in signal.Signals.__members__]
"""Signals of SLURM and cloud providers. Windows has SIGBREAK (Ctrl+Break) instead of SIGUSR1."""
MAX_STEM_BYTES = 180
"""Maximum length in bytes. File names have at most 255 bytes, and temporary files add a prefix and suffix."""


def get_file_stem(metric: str) -> str:
    """Return the name of a metric for use in a file name.

    Letters and digits of any script are kept, other characters are replaced by an underscore.

    Returns:
        A non-empty name of at most `MAX_STEM_BYTES` bytes in UTF-8.
    """
    # NFC, so that the composed and the decomposed form of a character result in the same file.
    stem = re.sub(r"[^\w.-]+", "_", unicodedata.normalize("NFC", metric)).strip("._") or "metric"
    # The limit counts bytes, so the cut may split a character; `ignore` drops the incomplete one.
    return stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")


def _is_injective(template: str) -> bool:
    """Whether a template contains one field and formats different numbers as different names."""
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        # A format such as `{:.0e}` is valid but rounds, so distinctness is tested on neighboring numbers.
        names = {template.format(number) for number in (1, 2, 10, 11, 1_000_000, 1_000_001)}
    except (ValueError, LookupError, TypeError):
        return False
    return template.isprintable() and fields in ([""], ["0"]) and len(names) == 6


def _check_template(value: str) -> str:
    # A leading dot would hide the checkpoint, and `best_` is the prefix of best checkpoints.
    # A checkpoint may be copied to another system, so the name has to be valid on all of them.
    has_reserved = not RESERVED_CHARACTERS.isdisjoint(value.format(0) if _is_injective(value) else value)
    is_named = value.endswith(".pth") and not value.startswith((".", "best_"))
    if has_reserved or not is_named or not _is_injective(value):
        raise ValueError(
            "must be a file name that ends with .pth, starts neither with a dot nor with best_, contains one {} for "
            f"the number, and none of the characters {RESERVED_TEXT}, got {value!r}. Set a name such as "
            "'epoch_{}.pth'."
        )
    return value


class CheckpointConfig(HookConfig):
    """Schedule, content, names and retention of checkpoints."""

    when_error = (
        "checkpoints of epochs and of iterations have separate schedules. Set `interval` and `by_epoch`, or `every` "
        "for a duration."
    )

    effective_with = (("rule", "save_best"), ("keep_every", "max_keep_ckpts"))

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
    save_best: bool | str | list[str] = Field(
        default=True, description="Keep the best checkpoint: by best_metric (true), by these metrics, or `auto`."
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
        default=None, description="Name of periodic checkpoints; default: `epoch_{}.pth`, or `iter_{}.pth`."
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
        for metric in self.metrics:
            if self.rule is None and infer_direction(metric) is None:
                raise ValueError(f"rule: {ambiguous_direction_message(metric, 'Set `rule` to greater or less')}")
        return self

    @model_validator(mode="after")
    def _check_best_metric(self) -> Self:
        if self.save_best is not True and not self.is_default("best_metric"):
            raise ValueError(
                f"best_metric: no effect with save_best {self.save_best!r}, got {self.best_metric!r}. Set `save_best: "
                "true`, or remove `best_metric`."
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
        if self.by_epoch and self.template.format(1) == ITERATION_TEMPLATE.format(1):
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
        if isinstance(self.save_best, bool):
            return [self.best_metric] if self.save_best else []
        if isinstance(self.save_best, str):
            return [] if self.save_best == "auto" else [self.save_best]
        return list(self.save_best)

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
        """Name of periodic checkpoints with one field for the number."""
        return self.filename_tmpl or ("epoch_{}.pth" if self.by_epoch else ITERATION_TEMPLATE)

    def file_name(self, unit: str, number: int) -> str:
        """Return the name of a periodic checkpoint.

        Args:
            unit: "epoch" or "iteration".
            number: Number of completed units.
        """
        return (self.template if self._counts(unit) else ITERATION_TEMPLATE).format(number)

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
