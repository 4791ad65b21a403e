"""Which parameters do paths and patterns stand for?

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

__all__ = ["chosen_of", "paths_of", "resolve"]

T = TypeVar("T")


def resolve(parameters: Iterable[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Find the parameters that targets stand for.

    Args:
        parameters: full names: `backbone.0.weight`.
        targets: full names of parameters or of modules, or patterns over them with `*`, `?` and `[...]`, in which `*`
            stands for dots as well; a module stands for all parameters below it. None at all stands for everything.

    Returns:
        The parameters in their own order, and the targets that stand for nothing.
    """
    names = list(parameters)
    if not targets:
        return names, []
    found = {target: {name for name in names if _stands_for(target, name)} for target in targets}
    chosen = set().union(*found.values())
    return [name for name in names if name in chosen], [target for target in targets if not found[target]]


def chosen_of(parameters: Mapping[str, T], targets: Sequence[str]) -> dict[str, T]:
    """The parameters that targets stand for, each once, under the first of its names that was chosen.

    Args:
        parameters: by full name; one that is shared has several names.
        targets: as for `resolve`.
    """
    names, _ = resolve(parameters, targets)
    first = {id(parameters[name]): name for name in reversed(names)}
    return {name: parameters[name] for name in names if first[id(parameters[name])] == name}


def paths_of(parameters: Iterable[str]) -> list[str]:
    """Everything that a target can name: `backbone`, `backbone.0`, `backbone.0.weight`, ..."""
    return list(dict.fromkeys(path for name in parameters for path in _prefixes(name)))


def _stands_for(target: str, name: str) -> bool:
    return any(fnmatchcase(path, target) for path in _prefixes(name))


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
