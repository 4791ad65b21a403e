"""Overrides on the command line: `training.epochs=3`, `hooks.checkpoint.interval=2`, `~hooks.ema`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookbus._packages import class_of_entry
from hookbus._yaml import Document, Path, parse_value

__all__ = ["apply_overrides"]


def apply_overrides(document: Document, overrides: Iterable[str]) -> list[str]:
    """Change the data of a document; every value remembers which override put it there.

    A hook is named by its instance name or its type. One that the file does not have is added (`~` of one that the file
    does not have switches off the default hook of this name).

    Args:
        document: changed in place.
        overrides: `a.b=value` sets, `~a.b` deletes.

    Returns:
        A sentence for each override that means nothing.
    """
    problems = []
    for text in overrides:
        problem = _delete(document, text) if text.startswith("~") else _set(document, text)
        if problem:
            problems.append(f"command line: {text}: {problem}")
    return problems


def _set(document: Document, text: str) -> str:
    dotted, equals, written = text.partition("=")
    if not equals:
        return "an override is written key=value, or ~key to delete."
    if not all(dotted.split(".")):
        return f"{dotted!r} is not a key; keys are joined by single dots."
    try:
        value = parse_value(written)
    except ValueError as error:
        return str(error)
    path = _resolved(document, dotted.split("."), add=True)
    target = document.data
    for key in path[:-1]:
        if isinstance(target, dict) and key not in target:
            target[key] = {}
            _mark(document, path[: path.index(key) + 1], text)
        target = target[key]
        if not isinstance(target, (dict, list)):
            return f"{key!r} has the value {target!r}, which has no keys inside."
    target[path[-1]] = value
    _mark(document, path, text)
    return ""


def _delete(document: Document, text: str) -> str:
    keys = text[1:].split(".")
    path = _resolved(document, keys, add=False)
    target: Any = document.data
    for key in path[:-1]:
        target = target.get(key) if isinstance(target, dict) else target[key]
        if not isinstance(target, (dict, list)):
            target = None
            break
    if isinstance(target, dict) and path[-1] in target:
        del target[path[-1]]
    elif isinstance(target, list) and isinstance(path[-1], int):
        target[path[-1]] = {"type": target[path[-1]]["type"], "enabled": False}
        _mark(document, path, text)
    elif len(keys) == 2 and keys[0] == "hooks":
        _add_hook(document, {"type": keys[1], "enabled": False}, text)
    else:
        return "there is nothing of this name to delete."
    return ""


def _resolved(document: Document, keys: list[str], *, add: bool) -> Path:
    """The path that dotted keys mean: an entry of a hook list is found by its name or type."""
    if keys[0] != "hooks" or len(keys) < 2:
        return tuple(keys)
    hooks = document.data.get("hooks")
    if isinstance(hooks, dict):
        return tuple(keys)
    for i, entry in enumerate(hooks or []):
        if isinstance(entry, str):
            hooks[i] = entry = {"type": entry}
        if isinstance(entry, dict) and keys[1] in _names(entry):
            return ("hooks", i, *keys[2:])
    if keys[1].isdigit() and hooks and int(keys[1]) < len(hooks):
        return ("hooks", int(keys[1]), *keys[2:])
    if not add:
        return tuple(keys)
    index = _add_hook(document, {"type": keys[1]}, ".".join(keys))
    return ("hooks", index, *keys[2:])


def _add_hook(document: Document, entry: dict[str, Any], text: str) -> int | str:
    """Put a hook into the file's hooks; returns its key there."""
    hooks = document.data.setdefault("hooks", [])
    if isinstance(hooks, dict):
        hooks[entry["type"]] = entry
        key: int | str = entry["type"]
    else:
        hooks.append(entry)
        key = len(hooks) - 1
    _mark(document, ("hooks", key), text)
    return key


def _names(entry: dict[str, Any]) -> set[str]:
    """The names by which an override can mean a hook."""
    kind = entry.get("type")
    if not isinstance(kind, str):
        return {str(entry.get("name"))}
    return {str(entry.get("name")), kind, *class_of_entry(kind)}


def _mark(document: Document, path: Path, text: str) -> None:
    """From now on this place is the override's."""
    for places in (document.keys, document.values):
        for known in [known for known in places if known[: len(path)] == path]:
            del places[known]
        places[path] = text
