"""Configuration of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig


class GradientFlowConfig(HookConfig):
    """Configuration of `GradientFlowHook`."""

    when_error = "gradients are read at multiple points of an optimizer step. Set `frequency` instead."

    targets: list[str] = Field(
        default=[],
        description="Paths of modules or parameters, or patterns with * and ?; a module selects all of its "
        "parameters. Default: all parameters.",
    )
    frequency: int = Field(default=100, ge=1, description="Measure every N optimizer steps.")
    save_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Directory of the charts; a relative path is below the visualization directory of the run. "
        "Default: a directory there with the name of the hook.",
    )
