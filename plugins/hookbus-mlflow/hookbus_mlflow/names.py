"""The names that MLflow takes."""

from __future__ import annotations

import re

from hookbus.records.names import safe_name

__all__ = ["stored"]

LONGEST = 250
FORBIDDEN = re.compile(r"[^/\w.\- ]|^/|(?<=/)/|/$|(?:(?<=^)|(?<=/))\.\.?(?=/|$)")
"""All but letters, digits and `_ - . / space`; and what would be another path than it says."""


def stored(name: str) -> str:
    """The name under which MLflow has a metric, a param or a picture: as `hookbus.records.names.safe_name` makes it."""
    return safe_name(name, FORBIDDEN, LONGEST)
