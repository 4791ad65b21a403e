"""Configuration of the hook."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from hookbus.writers import WriterConfig


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
