"""Selection of parameters by paths and patterns.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")


def match_targets(parameters: Iterable[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Select the parameters that match targets.

    Args:
        parameters: Full names, such as `backbone.0.weight`.
        targets: Full names of parameters or modules, or patterns of full names with `*`, `?` and `[...]`; `*` also
            matches dots. A module selects all of its parameters; an empty sequence selects all parameters.

    Returns:
        The selected parameters in their original order, and the targets that match no parameter.
    """
    names = list(parameters)
    if not targets:
        return names, []
    matches = {target: {name for name in names if _matches(target, name)} for target in targets}
    selected = set().union(*matches.values())
    return [name for name in names if name in selected], [target for target in targets if not matches[target]]


def select_parameters(parameters: Mapping[str, T], targets: Sequence[str]) -> dict[str, T]:
    """Return the parameters that match targets, without duplicates of shared parameters.

    Args:
        parameters: Parameters by full name; a shared parameter has multiple names.
        targets: Targets as for `match_targets`.

    Returns:
        The selected parameters, each by the first of its names that matches.
    """
    names, _ = match_targets(parameters, targets)
    first = {id(parameters[name]): name for name in reversed(names)}
    return {name: parameters[name] for name in names if first[id(parameters[name])] == name}


def list_paths(parameters: Iterable[str]) -> list[str]:
    """Return the paths of all modules and parameters: `backbone`, `backbone.0`, `backbone.0.weight`, ..."""
    return list(dict.fromkeys(path for name in parameters for path in _get_prefixes(name)))


def _matches(target: str, name: str) -> bool:
    return any(fnmatchcase(path, target) for path in _get_prefixes(name))


def _get_prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
