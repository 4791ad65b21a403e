"""Redaction of secrets in configurations, and conversion of configurations to nested or flat dicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from hookbus.writers.tags import escape_surrogates

__all__ = ["REDACTED", "flatten", "is_secret", "redact", "redact_config", "to_plain_dict"]

REDACTED = "***"
"""Replacement for a secret."""

# Key names are split into words: camelCase, snake_case and acronyms.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words that name a secret at any position of a key, at its end, and before `key`. `tokenizer` and `num_tokens` are not
# secrets, hence whole words; `auth_url` and `token_count` are not either, hence the position.
_SECRET_WORDS = frozenset(
    {"password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey"}
)
_SECRET_LAST_WORDS = frozenset({"token", "auth", "authorization", "bearer"})
_SECRET_KEY_PREFIXES = frozenset({"api", "access", "private", "auth", "ssh", "encryption", "signing"})
# Password of a URL such as postgres://user:password@host.
_URL_PASSWORD = re.compile(r"(\w://[^/\s:@]*:)[^/\s@]+@")


def to_plain_dict(config: Any) -> Any:
    """Convert a configuration to dicts and lists: pydantic models are dumped in JSON mode, keys become strings."""
    if hasattr(config, "model_dump"):
        return config.model_dump(mode="json")
    if isinstance(config, Mapping):
        return {str(key): to_plain_dict(value) for key, value in config.items()}
    return [to_plain_dict(item) for item in config] if isinstance(config, (list, tuple)) else config


def redact_config(config: Any) -> Any:
    """Convert a configuration to dicts and lists, with its secrets redacted."""
    return redact(to_plain_dict(config))


def is_secret(key: str) -> bool:
    """Return whether a key names a secret: `api_key`, `hf_token`, `clientSecret`, `DB_PASSWORD`; not `num_tokens`."""
    words = [word.lower() for word in _WORD.findall(key)]
    pairs = pairwise(words)
    matches = any(word in _SECRET_WORDS for word in words) or any(
        a in _SECRET_KEY_PREFIXES and b == "key" for a, b in pairs
    )
    return matches or bool(words and words[-1] in _SECRET_LAST_WORDS)


def redact(value: Any, key: str = "") -> Any:
    """Return a copy with secrets redacted: values whose key names a secret, and passwords in URLs.

    The copy consists of dicts with string keys, lists, numbers, booleans, strings and None.

    Args:
        value: Nested mappings, sequences and values; objects of other types become their `str`.
        key: Key of the value.
    """
    # None and booleans contain no secret, and `auth: false` remains readable.
    if value is None or isinstance(value, bool):
        return value
    if is_secret(key):
        return REDACTED
    if isinstance(value, Mapping):
        return {escape_surrogates(str(name)): redact(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [redact(item) for item in value]
    return _to_builtin(value)


def _to_builtin(value: Any) -> int | float | str:
    # The abstract base classes of `numbers` include the scalars of NumPy.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return _URL_PASSWORD.sub(rf"\1{REDACTED}@", escape_surrogates(str(value)))


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
