"""The services that every run has."""

from __future__ import annotations

from docs.generating.tables import table
from hookbus._run.services import SERVICES

__all__ = ["services"]


def services() -> str:
    """Return the table of services."""
    return table(
        ("name", "type", "service"), ((f"`{name}`", f"`{item.type}`", item.doc) for name, item in SERVICES.items())
    )
