"""What users hand over: whether it can be what it is meant to be. A sentence for each that cannot, and all at once.

Each function returns what is wrong with one argument, by its name; "" where it is as it should be. None stands for an
argument that was left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from numbers import Integral

from hookbus.errors import ConfigError, did_you_mean

__all__ = ["batches", "function", "instance", "one_of", "path", "refuse", "seed", "settings", "truth", "with_method"]

LARGEST_SEED = 2**63


def refuse(problems: Iterable[str]) -> None:
    """Raise what is wrong, if anything is.

    Raises:
        ConfigError: with a line for each problem.
    """
    found = [problem for problem in problems if problem]
    if found:
        raise ConfigError(found)


def truth(name: str, value: object) -> str:
    """A truth value and nothing else: "no" would be true."""
    return "" if isinstance(value, bool) else f"{name}: {value!r} is neither True nor False."


def one_of(name: str, value: object, known: Iterable[str]) -> str:
    """One of some words."""
    words = list(known)
    if value in words:
        return ""
    return f"{name}: {value!r} is none of {', '.join(words)}.{did_you_mean(str(value), words)}"


def seed(name: str, value: object) -> str:
    """A whole number that torch and NumPy take."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < LARGEST_SEED
    return "" if value is None or is_number else f"{name}: {value!r} is not a whole number from 0 on, below 2**63."


def function(name: str, value: object, example: str) -> str:
    """Something to call."""
    return "" if value is None or callable(value) else f"{name}: {value!r} cannot be called: give {example}."


def with_method(name: str, value: object, method: str) -> str:
    """Something with a method."""
    is_there = value is None or callable(getattr(value, method, None))
    return "" if is_there else f"{name}: {value!r} has no {method}()."


def instance(name: str, value: object) -> str:
    """No class: called with what is to be worked on, it would make an instance of it."""
    if not isinstance(value, type):
        return ""
    return f"{name}: {value.__name__} is a class: give an instance of it, {value.__name__}(...)."


def batches(name: str, value: object) -> str:
    """A loader, or a mapping of names to loaders."""
    if isinstance(value, Mapping):
        return " ".join(filter(None, (batches(f"{name}.{key}", each) for key, each in value.items())))
    can_be = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    if value is None or (can_be and not isinstance(value, (str, bytes))):
        return ""
    return f"{name}: {value!r} gives no batches: give a DataLoader, or anything that can be iterated in every epoch."


def path(name: str, value: object) -> str:
    """A file or a directory."""
    return "" if value is None or isinstance(value, (str, os.PathLike)) else f"{name}: {value!r} is no path."


def settings(name: str, value: object) -> str:
    """A configuration: a mapping, or a pydantic model."""
    is_one = value is None or isinstance(value, Mapping) or hasattr(value, "model_dump")
    return "" if is_one else f"{name}: {value!r} is no mapping of names to values, such as vars(args)."
