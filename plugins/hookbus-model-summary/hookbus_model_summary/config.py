"""Configuration of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus import HookConfig


class ModelSummaryConfig(HookConfig):
    """Configuration of `ModelSummaryHook`."""

    frequency_error = "the summary is printed once, before the first iteration. Remove it."
    when_error = "the summary is printed once, before the first iteration. Remove it."

    max_depth: int = Field(
        default=1, ge=-1, description="Number of levels of nested modules to list; -1 for all, 0 for no summary."
    )
