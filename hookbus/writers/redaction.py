"""Conversion of configurations, whose secrets `hookbus._utils.redaction` redacts, to flat dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(value: Any, separator: str = ".") -> dict[str, Any]:
    """Flatten nested mappings and sequences: `{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c.0": 2}`.

    Empty mappings and sequences are omitted.

    Args:
        value: Nested mappings and sequences.
        separator: Separator between the components of a key. Default: ".".
    """
    return dict(_iter_leaves(value, "", separator))


def _iter_leaves(value: Any, key: str, separator: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items = [(str(name), item) for name, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        yield key, value
        return
    for name, item in items:
        yield from _iter_leaves(item, f"{key}{separator}{name}" if key else name, separator)
