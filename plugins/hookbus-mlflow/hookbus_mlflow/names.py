"""Valid names of MLflow metrics, params and artifacts."""

from __future__ import annotations

import re

from hookbus.records.names import safe_name

__all__ = ["stored"]

LONGEST = 250
FORBIDDEN = re.compile(r"[^/\w.\- ]|^/|(?<=/)/|/$|(?:(?<=^)|(?<=/))\.\.?(?=/|$)")
"""Characters other than letters, digits and `_ - . / space`, and the parts that make a path not normalized."""


def stored(name: str) -> str:
    """Return the name of a record in MLflow, made valid by `hookbus.records.names.safe_name`."""
    return safe_name(name, FORBIDDEN, LONGEST)
