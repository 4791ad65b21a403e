"""Names of records: the character set of a backend, and keys of a configuration."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hookbus._utils.values import iter_leaves


def sanitize_name(name: str, forbidden: re.Pattern[str], max_length: int) -> str:
    """Replace forbidden characters of a name by `_`, and shorten it if it is too long.

    A name that is changed gets a dash and the first 8 digits of its SHA-256 hash, so that different names remain
    different: `acc,top1` becomes `acc_top1-` and 8 digits. An empty name becomes `_` and the hash.

    Args:
        name: Name to convert.
        forbidden: Characters that the backend does not accept.
        max_length: Maximum number of characters.
    """
    safe = forbidden.sub("_", name)
    if safe == name and 0 < len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe[: max_length - len(digest) - 1] or '_'}-{digest}"


def flatten(value: Any, separator: str = ".") -> dict[str, Any]:
    """Flatten nested mappings and sequences: `{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c.0": 2}`.

    Empty mappings and sequences are omitted.

    Args:
        value: Nested mappings and sequences.
        separator: Separator between the components of a key. Default: ".".
    """
    return {separator.join(map(str, path)): leaf for path, leaf in iter_leaves(value)}
