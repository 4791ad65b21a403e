"""The settings of the hook."""

from __future__ import annotations

from pydantic import Field, field_validator

from hookbus import HookConfig

__all__ = ["GradientFlowConfig"]


class GradientFlowConfig(HookConfig):
    """Whose gradients are looked at, how often, and where the charts go."""

    targets: list[str] = Field(
        default=[],
        description="Modules or parameters by path, or patterns with * and ?; a module stands for all of its "
        "parameters. Default every parameter.",
    )
    frequency: int = Field(default=100, ge=1, description="Look every this many updates of the optimizer.")
    save_dir: str | None = Field(
        default=None,
        min_length=1,
        description="The folder of the charts; a relative one is below the visualization directory of the run. "
        "Default a folder there with the name of the hook.",
    )

    @field_validator("when")
    @classmethod
    def _is_counted(cls, value: object) -> object:
        if value is not None:
            raise ValueError("gradients are read at several points of an update. Say frequency for how often.")
        return value
