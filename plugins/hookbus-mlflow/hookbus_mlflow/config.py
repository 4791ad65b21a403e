"""The settings of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus.records.recording import WriterConfig

__all__ = ["MLflowConfig"]


class MLflowConfig(WriterConfig):
    """Where runs are kept, and how this one is called."""

    tracking_uri: str | None = Field(
        default=None, description="The MLflow server or database; default SQLite among the logs of the run."
    )
    experiment: str = Field(default="hookbus", min_length=1, description="The experiment; made if it is not there.")
    run_name: str | None = Field(
        default=None, description="What the run is called; default the name of its work directory."
    )
    tags: dict[str, str] = Field(default={}, description="Tags of the run.")
    log_model: bool = Field(default=False, description="Whether checkpoint files become artifacts.")
