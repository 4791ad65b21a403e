"""Configuration of the hook, and valid names of MLflow metrics, params and artifacts."""

from __future__ import annotations

import re

from pydantic import Field

from hookbus.writers import WriterConfig, sanitize_name


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


MAX_LENGTH = 250
FORBIDDEN = re.compile(r"[^/\w.\- ]|^/|(?<=/)/|/$|(?:(?<=^)|(?<=/))\.\.?(?=/|$)")
"""Characters other than letters, digits and `_ - . / space`, and the parts that make a path not normalized."""


def to_mlflow_name(name: str) -> str:
    """Return the name of a record in MLflow, made valid by `hookbus.writers.tags.sanitize_name`."""
    return sanitize_name(name, FORBIDDEN, MAX_LENGTH)
