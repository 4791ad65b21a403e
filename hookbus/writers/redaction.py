"""Conversion of configurations, whose secrets `hookbus._utils.redaction` redacts, to flat dicts."""

from __future__ import annotations

from typing import Any

from hookbus._utils.values import iter_leaves


def flatten(value: Any, separator: str = ".") -> dict[str, Any]:
    """Flatten nested mappings and sequences: `{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c.0": 2}`.

    Empty mappings and sequences are omitted.

    Args:
        value: Nested mappings and sequences.
        separator: Separator between the components of a key. Default: ".".
    """
    return {separator.join(map(str, path)): leaf for path, leaf in iter_leaves(value)}
