"""Valid names of MLflow metrics, params and artifacts."""

from __future__ import annotations

import re

from hookbus.writers import sanitize_name

MAX_LENGTH = 250
FORBIDDEN = re.compile(r"[^/\w.\- ]|^/|(?<=/)/|/$|(?:(?<=^)|(?<=/))\.\.?(?=/|$)")
"""Characters other than letters, digits and `_ - . / space`, and the parts that make a path not normalized."""


def to_mlflow_name(name: str) -> str:
    """Return the name of a record in MLflow, made valid by `hookbus.writers.tags.sanitize_name`."""
    return sanitize_name(name, FORBIDDEN, MAX_LENGTH)
