"""What requires a newer torch than the lowest supported version."""

from __future__ import annotations

from docs.generating.tables import capitalize, table
from hookbus._utils.torch_versions import FEATURES

__all__ = ["torch_features"]


def torch_features() -> str:
    """Return the table of features, the version of torch that each requires, and what to do without it."""
    rows = [(f"`{name}`", version, capitalize(alternative)) for name, (version, alternative) in FEATURES.items()]
    return table(("feature", "requires torch", "with an older version"), rows)
