"""Validation of constructor arguments. Errors are collected and raised together.

Unless stated otherwise, a `check_*` function returns the error message of one argument, or "" if the argument is
valid. `raise_config_error` raises the collected messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Integral

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.values import format_value
from hookbus.errors import ConfigError

SEED_LIMIT = 2**63


def check_count(value: object, where: str, *, minimum: int = 1) -> None:
    """Raise unless a value is an integer that is large enough.

    Args:
        value: Value to check. Booleans are invalid.
        where: Name of the value, for the error message.
        minimum: Smallest valid value.

    Raises:
        ConfigError: If the value is invalid.
    """
    # `bool` is a subclass of `int`.
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError([f"{where}: expected an integer >= {minimum}, got {format_value(value)}."])


def raise_config_error(problems: Iterable[str]) -> None:
    """Raise the collected error messages, if any.

    Raises:
        ConfigError: If a message is not empty. The error contains one line per message.
    """
    messages = [problem for problem in problems if problem]
    if messages:
        raise ConfigError(messages)


def check_bool(name: str, value: object) -> str:
    """Check that a value is a bool."""
    # Truthiness is not enough: the string "no" is true.
    return "" if isinstance(value, bool) else f"{name}: should be True or False, got {format_value(value)}."


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """Check that a value is one of the accepted choices."""
    choices = list(known)
    if value in choices:
        return ""
    hint = suggest_if_close(str(value), choices)
    return f"{name}: should be one of {', '.join(choices)}, got {format_value(value)}.{hint}"


def check_seed(name: str, value: object) -> str:
    """Check that a value is a seed: an integer in [0, 2**63), or None."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < SEED_LIMIT
    if value is None or is_number:
        return ""
    return f"{name}: should be an integer from 0 to 2**63 - 1, got {format_value(value)}."


def check_callable(name: str, value: object, example: str) -> str:
    """Check that a value is callable, or None."""
    if value is None or callable(value):
        return ""
    return f"{name}: should be callable, got {format_value(value)}. Pass {example}."


def check_has_method(name: str, value: object, method: str) -> str:
    """Check that a value has a method, or is None."""
    is_valid = value is None or callable(getattr(value, method, None))
    return "" if is_valid else f"{name}: should have a method {method}(), got {format_value(value)}."


def check_is_instance(name: str, value: object) -> str:
    """Check that a value is not a class."""
    # A class is callable as well: the loop would create an instance of it instead of calling the function.
    if not isinstance(value, type):
        return ""
    return f"{name}: should be an instance, got the class {value.__name__}. Pass {value.__name__}(...)."


def check_loader(name: str, value: object) -> str:
    """Check that a value is a data loader, a mapping of names to data loaders, or None."""
    if isinstance(value, Mapping):
        return " ".join(filter(None, (check_loader(f"{name}.{key}", loader) for key, loader in value.items())))
    is_iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if value is None or (is_iterable and not isinstance(value, (str, bytes))):
        return ""
    return (
        f"{name}: should be iterable in every epoch, got {format_value(value)}. Pass a DataLoader or another iterable "
        "of batches."
    )


def check_path(name: str, value: object) -> str:
    """Check that a value is a path, or None."""
    if value is None or isinstance(value, (str, os.PathLike)):
        return ""
    return f"{name}: should be a path, got {format_value(value)}."


def check_mapping(name: str, value: object) -> str:
    """Check that a value is a configuration, a mapping or a pydantic model, or None."""
    is_valid = value is None or isinstance(value, Mapping) or hasattr(value, "model_dump")
    if is_valid:
        return ""
    return f"{name}: should be a mapping of names to values, such as vars(args), got {format_value(value)}."


def is_function_pair(value: object) -> bool:
    """Return whether a value is a pair of functions."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(callable, value))
