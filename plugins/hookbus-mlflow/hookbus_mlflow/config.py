"""Configuration of the hook."""

from __future__ import annotations

from pydantic import Field

from hookbus.writers import WriterConfig


class MLflowConfig(WriterConfig):
    """Configuration of `MLflowHook`."""

    tracking_uri: str | None = Field(
        default=None, description="Tracking server or database. Default: SQLite below the log directory of the run."
    )
    experiment: str = Field(default="hookbus", min_length=1, description="Experiment; created if it does not exist.")
    run_name: str | None = Field(
        default=None, description="Name of the MLflow run. Default: the name of the work directory."
    )
    tags: dict[str, str] = Field(default={}, description="Tags of the MLflow run.")
    log_model: bool = Field(default=False, description="Log checkpoint files as artifacts.")
