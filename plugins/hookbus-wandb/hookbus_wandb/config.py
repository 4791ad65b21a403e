"""The settings of the hook."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from hookbus.records.recording import WriterConfig

__all__ = ["WandbConfig"]


class WandbConfig(WriterConfig):
    """Which run of W&B this is, and what it gets besides what every back end gets."""

    instance_key: ClassVar[str] = "instance"

    instance: str | None = Field(default=None, description="The instance name; default the entry point.")
    name: str | None = Field(
        default=None, description="What the run of W&B is called; default the name of the work directory."
    )
    project: str | None = Field(
        default=None, description="The project; default what W&B is told otherwise, as by WANDB_PROJECT."
    )
    config: dict[str, Any] | None = Field(
        default=None, description="Settings that W&B has beside the configuration of the run; these win."
    )
    log_model: bool = Field(default=False, description="Whether checkpoint files become versions of an artifact.")
    log_code: bool = Field(
        default=False, description="Whether the Python files below the current directory become an artifact."
    )
    mode: Literal["online", "offline", "disabled"] | None = Field(
        default=None, description="Where the run goes; default what WANDB_MODE says, else online."
    )
    id: str | None = Field(
        default=None,
        pattern=r"^[\w-]{1,64}$",
        description="The id of the run of W&B; default a new one, which the work directory keeps.",
    )
    resume: Literal["allow", "must", "never"] = Field(
        default="allow",
        description="Whether a run of W&B that is there is gone on with: if there is one, always, or never.",
    )
