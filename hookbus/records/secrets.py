"""What of a configuration is recorded: plain values, everything but the secrets, nested or as one flat mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from hookbus.records.names import encodable

__all__ = ["HIDDEN", "flattened", "is_secret", "plain_settings", "recordable", "without_secrets"]

HIDDEN = "***"
"""What stands in the place of a secret."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ANYWHERE = frozenset(
    {"password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "apikey"}
)
_LAST = frozenset({"token", "auth", "authorization", "bearer"})
_KEYS = frozenset({"api", "access", "private", "auth", "ssh", "encryption", "signing"})
_LOGIN = re.compile(r"(\w://[^/\s:@]*:)[^/\s@]+@")


def plain_settings(config: Any) -> Any:
    """A configuration whose pydantic models are mappings of plain values, itself one or not; keys become texts."""
    if hasattr(config, "model_dump"):
        return config.model_dump(mode="json")
    if isinstance(config, Mapping):
        return {str(key): plain_settings(each) for key, each in config.items()}
    return [plain_settings(each) for each in config] if isinstance(config, (list, tuple)) else config


def recordable(config: Any) -> Any:
    """A configuration as `plain_settings`, its secrets hidden."""
    return without_secrets(plain_settings(config))


def is_secret(key: str) -> bool:
    """Whether a key names a secret: `api_key`, `hf_token`, `clientSecret`, `DB_PASSWORD`; not `num_tokens`."""
    words = [word.lower() for word in _WORD.findall(key)]
    pairs = pairwise(words)
    named = any(word in _ANYWHERE for word in words) or any(a in _KEYS and b == "key" for a, b in pairs)
    return named or bool(words and words[-1] in _LAST)


def without_secrets(value: Any, key: str = "") -> Any:
    """A plain copy in which secrets are hidden: values under keys that name one, and passwords in URLs.

    It consists of mappings with texts as keys, lists, numbers, truth values, texts and None.

    Args:
        value: mappings, sequences and values, nested as they like; what has no plain form becomes its text.
        key: the key under which the value stands.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret(key):
        return HIDDEN
    if isinstance(value, Mapping):
        return {encodable(str(name)): without_secrets(each, str(name)) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [without_secrets(each) for each in value]
    return _plain(value)


def _plain(value: Any) -> int | float | str:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return _LOGIN.sub(rf"\1{HIDDEN}@", encodable(str(value)))


def flattened(value: Any, separator: str = ".") -> dict[str, Any]:
    """One flat mapping: `{"a": {"b": 1}, "c": [2]}` becomes `{"a.b": 1, "c.0": 2}`; what is empty leaves nothing.

    Args:
        value: mappings and sequences, nested.
        separator: what stands between the parts of a key.
    """
    return dict(_leaves(value, "", separator))


def _leaves(value: Any, key: str, separator: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        inside = [(str(name), each) for name, each in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(str(number), each) for number, each in enumerate(value)]
    else:
        yield key, value
        return
    for name, each in inside:
        yield from _leaves(each, f"{key}{separator}{name}" if key else name, separator)
