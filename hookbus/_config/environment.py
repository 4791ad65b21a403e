"""Settings from environment variables: `HOOKBUS_TRAINING__EPOCHS=5`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from hookbus._config.document import Document, Origin, iter_paths
from hookbus._config.yaml import MAX_DEPTH, parse_value
from hookbus._utils.variables import OWN_VARIABLES, PREFIX

SEPARATOR = "__"
"""Separator of the keys in the name of a variable."""

_REFERABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_variables(environ: Mapping[str, str] = os.environ) -> Document | None:
    """Return the settings in environment variables, or None without any.

    Two underscores separate keys, which are converted to lower case unless they mix upper and lower case. Values are
    parsed like those of overrides.
    """
    names = [name for name in environ if name.upper().startswith(PREFIX) and name not in OWN_VARIABLES]
    document = Document("environment", data={})
    # Those with fewer keys first: HOOKBUS_LOADER is set before HOOKBUS_LOADER__SHUFFLE.
    for name in sorted(names, key=lambda name: (name.count(SEPARATOR), name)):
        try:
            _set(document, name, environ[name])
        except ValueError as error:
            document.problems.append(document.format_problem_at(Origin(name), str(error)))
    return document if names else None


def _set(document: Document, name: str, text: str) -> None:
    """Set the value of a variable. Raises ValueError if its name or its value is invalid."""
    keys, value = _split_keys(name), _parse(name, text)
    target, locations = document.data, document.value_locations
    for end, key in enumerate(keys[:-1], 1):
        target = target.setdefault(key, {})
        other = locations.setdefault(keys[:end], Origin(name))
        if not isinstance(target, dict):
            raise ValueError(f"{other} is set as well, and has no keys. Unset one of the two variables.")
    if keys[-1] in target:
        raise ValueError(f"{document.find_location(keys)} is set as well. Unset one of the two variables.")
    target[keys[-1]] = value
    locations.update(dict.fromkeys(iter_paths(value, keys), Origin(name)))


def _split_keys(name: str) -> tuple[str, ...]:
    first, *others = name[len(PREFIX) :].split(SEPARATOR)
    # Arguments of models and schedulers may contain capital letters, such as T_max.
    keys = (first.lower(), *(key.lower() if key == key.upper() else key for key in others))
    if name.upper() in OWN_VARIABLES:
        raise ValueError(f"invalid name. Write {name.upper()}.")
    if not all(keys):
        raise ValueError(f"invalid name. Write {PREFIX}KEY, or {PREFIX}SECTION{SEPARATOR}KEY.")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels.")
    return keys


def _parse(name: str, text: str) -> Any:
    value = parse_value(text)
    is_plain = (value == text and "${" not in text) or isinstance(value, (int, float))
    # As a reference, so that a secret is recorded by the name of its variable, and a number may become a string.
    if is_plain and _REFERABLE.fullmatch(name):
        return f"${{env:{name}}}"
    return value
