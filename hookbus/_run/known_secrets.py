"""Secret values of a run, which are also hidden where no key or pattern identifies them: in messages of errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from operator import is_
from typing import Any

from hookbus._events.checks import is_configured
from hookbus._utils.redaction import SECRET_TYPES, redact, redact_config
from hookbus._utils.secrets import REDACTED

MIN_LENGTH = 6
"""Length from which a secret value is hidden within a text. A shorter one, such as `abc`, occurs in ordinary words."""


def hide_repeated(raw: Any, redacted: Any) -> Any:
    """Return redacted data in which the values that are hidden somewhere are hidden wherever they occur.

    Args:
        raw: Data with its secrets.
        redacted: The same data, redacted.
    """
    return _hide(redacted, _compile(_iter_hidden(raw, redacted)))


class KnownSecrets:
    """Redaction with the secret values of a configuration and of hooks, which are collected when these change."""

    def __init__(self) -> None:
        self._known: tuple[list[Any], re.Pattern[str] | None] = ([], None)

    def redact(self, value: Any, config: Any, settings: Iterable[Any]) -> Any:
        """Return a copy with secrets redacted, also without the secret values of a configuration and of the hooks."""
        sources = [config, *settings]
        known, pattern = self._known
        if len(sources) != len(known) or not all(map(is_, sources, known)):
            pattern = _compile(_iter_secrets(config, sources[1:]))
            self._known = sources, pattern  # one assignment: threads log as well
        return _hide(redact(value), pattern)


def iter_settings(hooks: Iterable[object]) -> Iterator[Any]:
    """Yield the configurations of hooks; other plugins have none."""
    return (hook.config for hook in hooks if is_configured(hook))


def _compile(values: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of secret values within a text; None if there are none."""
    secrets = sorted({secret for secret in values if len(secret) >= MIN_LENGTH}, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, secrets))})(?!\w)") if secrets else None


def _hide(value: Any, pattern: re.Pattern[str] | None) -> Any:
    return value if pattern is None else _substitute(value, pattern)


def _iter_secrets(config: Any, settings: Iterable[Any]) -> Iterator[str]:
    """Yield the secret values in the configuration of a run and of its hooks."""
    raw = config.model_dump() if hasattr(config, "model_dump") else config
    yield from _iter_hidden(raw, redact_config(config))
    for fields in settings:
        yield from _iter_hidden(fields.model_dump(exclude_unset=True), json.loads(fields.set_fields_json))


def _iter_hidden(raw: Any, redacted: Any) -> Iterator[str]:
    """Yield the strings of `raw` that are replaced in `redacted`, which has the same structure."""
    if isinstance(redacted, Mapping) and isinstance(raw, Mapping):
        values = {str(key): value for key, value in raw.items()}
        for key, item in redacted.items():
            yield from _iter_hidden(values.get(key), item)
    elif isinstance(redacted, list) and isinstance(raw, Iterable):
        for value, item in zip(raw, redacted, strict=False):
            yield from _iter_hidden(value, item)
    elif isinstance(redacted, str) and REDACTED in redacted:
        yield from _get_hidden_parts(_reveal(raw), redacted)


def _reveal(value: Any) -> str:
    revealed = value.get_secret_value() if isinstance(value, SECRET_TYPES) else value
    return revealed.decode(errors="replace") if isinstance(revealed, bytes) else str(revealed)


def _get_hidden_parts(text: str, redacted: str) -> Iterator[str]:
    """Yield the parts of a text that are replaced by `***`."""
    first, *middle, last = redacted.split(REDACTED)
    if not text.startswith(first) or not text.endswith(last):
        return
    # `str.find` and not a regular expression, whose time would not be linear in the length of the text.
    position = len(first)
    for part in middle:
        end = text.find(part, position)
        if end < 0:
            return
        yield text[position:end]
        position = end + len(part)
    yield text[position : len(text) - len(last)]


def _substitute(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        return {pattern.sub(REDACTED, key): _substitute(item, pattern) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, pattern) for item in value]
    return pattern.sub(REDACTED, value) if isinstance(value, str) else value
