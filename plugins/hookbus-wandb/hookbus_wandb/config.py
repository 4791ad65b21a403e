"""Configuration of the hook, and valid names of W&B records and artifacts."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field

from hookbus.writers import WriterConfig, sanitize_name


class WandbConfig(WriterConfig):
    """Configuration of `WandbHook`."""

    # `name` is the name of the W&B run, as in `wandb.init`, so the instance name of the hook needs another key.
    instance_key: ClassVar[str] = "instance"

    instance: str | None = Field(
        default=None, description="Instance name of the hook. Default: the name of the entry point."
    )
    name: str | None = Field(default=None, description="Name of the W&B run. Default: the name of the work directory.")
    project: str | None = Field(
        default=None, description="Project of the W&B run. Default: the setting of W&B, such as WANDB_PROJECT."
    )
    config: dict[str, Any] | None = Field(
        default=None, description="Values that are added to the configuration of the run and take precedence."
    )
    log_model: bool = Field(default=False, description="Upload checkpoint files as versions of an artifact.")
    log_code: bool = Field(
        default=False, description="Upload the Python files below the current directory as an artifact."
    )
    mode: Literal["online", "offline", "disabled"] | None = Field(
        default=None, description="Mode of the W&B run. Default: WANDB_MODE, or else online."
    )
    id: str | None = Field(
        default=None,
        pattern=r"^[\w-]{1,64}$",
        description="ID of the W&B run. Default: a generated ID, which the work directory stores.",
    )
    resume: Literal["allow", "must", "never"] = Field(
        default="allow",
        description="Whether to continue an existing W&B run: if it exists, always (else an error), or never.",
    )


STEP = "trainer/step"
"""Name of the scalar that contains the step of each row: the x-axis of all charts."""

MAX_LENGTH, MAX_ARTIFACT_LENGTH = 200, 128
FORBIDDEN = re.compile(rf"^(?:_step|_runtime|_timestamp|_wandb|{STEP})$|[\x00-\x1f]")
"""Names that W&B reserves, and control characters."""
FORBIDDEN_IN_ARTIFACTS = re.compile(r"[^\w.\-]", re.ASCII)


def to_wandb_name(name: str) -> str:
    """Return the name of a record in W&B, made valid by `hookbus.writers.tags.sanitize_name`."""
    return sanitize_name(name, FORBIDDEN, MAX_LENGTH)


def to_artifact_name(name: str) -> str:
    """Return the name of an artifact: at most 128 letters, digits and `_ - .`."""
    return sanitize_name(name, FORBIDDEN_IN_ARTIFACTS, MAX_ARTIFACT_LENGTH)
