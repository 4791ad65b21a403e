"""Redaction of configurations: one place decides which values are secrets and what is recorded instead.

A secret is declared by its type (`SecretStr`), named by its key (`api_key`), or recognized in a string (a password in
a URL). See `secret_types`, `secret_keys` and `secret_values`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from hookbus._utils.secret_keys import is_ambiguous, is_secret, joins_to_secret
from hookbus._utils.secret_types import SECRET_TYPES, dump_model
from hookbus._utils.secret_values import REDACTED, hide_secrets, is_reference


def escape_surrogates(text: str) -> str:
    """Replace lone surrogates by escape sequences, so that the text can be encoded as UTF-8.

    Lone surrogates occur in file names whose bytes are not valid UTF-8.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def to_plain_dict(config: Any) -> Any:
    """Convert a configuration to dicts and lists: pydantic models are dumped in JSON mode, keys become strings.

    Fields of secret types, such as `SecretStr`, are redacted; all other secrets remain.
    """
    if hasattr(config, "model_dump"):
        return dump_model(config)
    if isinstance(config, Mapping):
        return {str(key): to_plain_dict(value) for key, value in config.items()}
    return [to_plain_dict(item) for item in config] if isinstance(config, (list, tuple)) else config


def redact_config(config: Any) -> Any:
    """Convert a configuration to dicts and lists, with its secrets redacted.

    Args:
        config: A pydantic model, or nested mappings and sequences.
    """
    return redact(to_plain_dict(config))


def redact(value: Any, key: str = "") -> Any:
    """Return a copy with secrets redacted: strings whose key names a secret, and secrets inside other strings.

    The copy consists of dicts with string keys, lists, numbers, booleans, strings and None. Numbers, booleans and None
    are never redacted, except for values of `Secret[T]`.

    Args:
        value: Nested mappings, sequences and values; objects of other types become their `str`.
        key: Key of the value.
    """
    return _redact(value, key, is_secret(key))


def _redact(value: Any, key: str, hidden: bool) -> Any:
    """Return a redacted copy; `hidden` means that the key, or one of the keys around it, names a secret."""
    if isinstance(value, BaseModel):
        value = dump_model(value)
    if isinstance(value, Mapping):
        return _redact_mapping(value, key, hidden)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
        return [_redact(item, key, hidden or _follows_name(items, index)) for index, item in enumerate(items)]
    return _redact_scalar(value, hidden)


def _redact_mapping(mapping: Mapping[Any, Any], key: str, hidden: bool) -> dict[str, Any]:
    redacted = {}
    for name, item in mapping.items():
        text = str(name)
        is_hidden = hidden or is_secret(text) or joins_to_secret(key, text) or is_secret(_get_name(mapping, text))
        redacted[hide_secrets(escape_surrogates(text))] = _redact(item, text, is_hidden)
    return redacted


def _get_name(mapping: Mapping[Any, Any], key: str) -> str:
    """Return the name of a value in `{"name": "API_KEY", "value": ...}`, the form of the variables of containers."""
    if key.lower() != "value":
        return ""
    return next((str(item) for name, item in mapping.items() if str(name).lower() in ("name", "key")), "")


def _follows_name(items: Sequence[Any], index: int) -> bool:
    """Return whether the item before names a secret: an option of a command line, or the name of a pair."""
    name = items[index - 1] if index else None
    if not isinstance(name, str):
        return False
    is_option = name.startswith("-") and not str(items[index]).startswith("-")
    return (is_option or (len(items) == 2 and not is_ambiguous(name))) and is_secret(name)


def _redact_scalar(value: Any, hidden: bool) -> int | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, SECRET_TYPES):
        return REDACTED if str(value) else ""
    # The abstract base classes of `numbers` include the scalars of NumPy.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    text = escape_surrogates(str(value))
    return REDACTED if hidden and _may_be_secret(text) else hide_secrets(text)


def _may_be_secret(text: str) -> bool:
    """Return whether a string can be a secret, and not a special token: `<pad>`, `[MASK]`."""
    is_special_token = (text[:1], text[-1:]) in (("<", ">"), ("[", "]"))
    return bool(text) and not is_special_token and not is_reference(text)
