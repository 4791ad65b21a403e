"""Secrets in error messages about settings: values that a message shows, and texts that repeat them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hookbus._utils.redaction import redact
from hookbus._utils.secret_keys import is_secret
from hookbus._utils.secret_values import REDACTED

MIN_REPLACED_LENGTH = 4
"""Shorter secrets are replaced only where a message quotes them, because other words may contain them."""


def hide_value(value: Any, path: Sequence[Any], declared: Any) -> Any:
    """Return what a message shows of an invalid setting: the value, with its secrets redacted.

    Args:
        value: The invalid value.
        path: Path of the value in the settings.
        declared: All settings, with the values of secret types redacted by `hide_declared`.
    """
    for key in path:
        is_known = key in declared if isinstance(declared, Mapping) else isinstance(declared, list)
        if not is_known:
            declared = value
            break
        declared = declared[key]
    names = [key for key in path if isinstance(key, str)]
    # A secret key hides everything below it.
    name = next((key for key in names if is_secret(key)), names[-1] if names else "")
    shown = redact(declared, name)
    # Redaction also converts objects of other types to strings, which the message should not.
    return shown if any(_iter_changed(value, shown)) or shown == REDACTED else value


def hide_in_message(message: str, value: Any, shown: Any) -> str:
    """Return a message in which the secrets of a value are replaced.

    Args:
        message: A message that may repeat the value, such as that of a validator.
        value: The value.
        shown: The value with redacted secrets.
    """
    for secret, replacement in _iter_changed(value, shown):
        message = message.replace(repr(secret), repr(replacement))
        if len(secret) >= MIN_REPLACED_LENGTH:
            message = message.replace(secret, replacement)
    return message


def _iter_changed(value: Any, shown: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings that differ, with their replacements."""
    if isinstance(value, str) and isinstance(shown, str):
        if value != shown:
            yield value, shown
    elif isinstance(value, Mapping) and isinstance(shown, Mapping):
        for item, other in zip(value.values(), shown.values(), strict=False):
            yield from _iter_changed(item, other)
    elif isinstance(value, (list, tuple)) and isinstance(shown, list):
        for item, other in zip(value, shown, strict=False):
            yield from _iter_changed(item, other)
    elif isinstance(shown, str) and isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _iter_changed(item, shown)
