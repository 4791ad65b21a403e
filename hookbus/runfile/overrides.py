"""Overrides on the command line: `training.epochs=3`, `hooks.checkpoint.interval=2`, `~hooks.ema`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hookbus._imports import nearest
from hookbus._packages import class_of_entry
from hookbus.hook import snake_case
from hookbus.runfile.builder import DEFAULT_HOOKS
from hookbus.runfile.yaml import Document, Path, parse_value

__all__ = ["apply_overrides"]


def apply_overrides(document: Document, overrides: Iterable[str]) -> list[str]:
    """Change the data of a document; every value remembers which override put it there.

    A hook is named by its instance name, its type, or its number in the list from 0. One that the file does not have is
    added; `~` switches a hook off, a default one as well.

    Args:
        document: its data is a mapping; changed in place.
        overrides: `a.b=value` sets, `~a.b` deletes.

    Returns:
        A sentence for each override that means nothing.
    """
    problems = []
    for text in overrides:
        try:
            _Override(document, text).apply()
        except ValueError as error:
            problems.append(document.problem_at(text, str(error)))
    return problems


class _Override:
    """One override; what it cannot do is a ValueError."""

    def __init__(self, document: Document, text: str) -> None:
        self._document, self._text = document, text

    def apply(self) -> None:
        text = self._text
        if text.startswith("~"):
            self._delete(_keys(text[1:]))
            return
        dotted, equals, written = text.partition("=")
        if not equals:
            raise ValueError("an override is written key=value, or ~key to delete.")
        keys, value = _keys(dotted), parse_value(written)
        if keys[0] != "hooks" or len(keys) == 1:
            self._put(keys, value)
        elif len(keys) == 2 and value is None:
            self._delete(keys)
        else:
            self._set_hook(keys, value)

    def _set_hook(self, keys: list[str], value: Any) -> None:
        index = self._find_hook(keys[1])
        index = self._add_hook({"type": keys[1]}) if index is None else index
        if len(keys) == 2 and isinstance(value, dict):
            value = {**self._kept(index), **value}
        self._put(["hooks", index, *keys[2:]], value)

    def _put(self, keys: list[Any], value: Any) -> None:
        target: Any = self._document.data
        path: Path = ()
        for key in keys[:-1]:
            inner = _inside(target, key)
            path = (*path, inner)
            child = target.get(inner) if isinstance(target, dict) else target[inner]
            if child is None:
                child = target[inner] = {}
                self._mark(path)
            if not isinstance(child, (dict, list)):
                raise ValueError(f"{'.'.join(map(str, path))} is {child!r}, which has no keys inside.")
            target = child
        last = _inside(target, keys[-1])
        target[last] = value
        self._mark((*path, last))

    def _delete(self, keys: list[Any]) -> None:
        if keys[0] == "hooks" and len(keys) > 1:
            index = self._find_hook(keys[1])
            if len(keys) == 2:
                self._switch_off(keys[1], index)
                return
            if index is None:
                raise self._no_hook(keys[1])
            keys = ["hooks", index, *keys[2:]]
        target: Any = self._document.data
        path: Path = ()
        for key in keys[:-1]:
            path, target = (*path, _inside(target, key)), _child(target, key)
        _child(target, keys[-1])
        del target[_inside(target, keys[-1])]
        if isinstance(target, list):  # the places of what follows are no longer true
            self._mark(path)

    def _switch_off(self, name: str, index: str | int | None) -> None:
        """A hook that is switched off stays in the file with its settings, so that no default takes its place."""
        if index is not None:
            self._put(["hooks", index, "enabled"], False)
        elif {name, *class_of_entry(name)} & set(DEFAULT_HOOKS):
            self._add_hook({"type": name, "enabled": False})
        else:
            raise self._no_hook(name)

    def _no_hook(self, name: str) -> ValueError:
        there = {str(each) for key, entry in self._entries() for each in (key, entry.get("name"), *_names(entry))}
        return ValueError(f"the file has no hook {name!r}.{nearest(name, [*there, *DEFAULT_HOOKS])}")

    def _find_hook(self, name: str) -> str | int | None:
        """The place of a hook among the file's hooks: by instance name, else by type, else by number."""
        entries = list(self._entries())
        for found in (
            [key for key, entry in entries if name in (key, entry.get("name"))],
            [key for key, entry in entries if name in _names(entry)],
        ):
            if len(found) > 1:
                which = ", ".join(f"hooks.{key}" for key in found)
                raise ValueError(f"{name!r} means more than one hook; say which one: {which}.")
            if found:
                return found[0]
        hooks = self._document.data.get("hooks")
        return int(_inside(hooks, name)) if name.isdigit() and isinstance(hooks, list) else None

    def _entries(self) -> Iterator[tuple[str | int, dict[str, Any]]]:
        """The hooks of the file that are mappings or names, by their keys."""
        hooks = self._document.data.get("hooks")
        if isinstance(hooks, dict):
            named = ((key, {} if entry is None else entry) for key, entry in hooks.items())
            yield from ((key, {"type": key, **entry}) for key, entry in named if isinstance(entry, dict))
        elif isinstance(hooks, list):
            for i, entry in enumerate(hooks):
                if isinstance(entry, str):
                    hooks[i] = entry = {"type": entry}
                if isinstance(entry, dict):
                    yield i, entry
        elif hooks is not None:
            raise ValueError(f"hooks is {hooks!r}, which has no hooks inside.")

    def _add_hook(self, entry: dict[str, Any]) -> str | int:
        """Put a hook into the file's hooks; returns its key there."""
        hooks = self._document.data.get("hooks")
        if hooks is None:
            hooks = self._document.data["hooks"] = []
        key: str | int = entry["type"] if isinstance(hooks, dict) else len(hooks)
        if isinstance(hooks, dict):
            hooks[entry["type"]] = entry
        else:
            hooks.append(entry)
        self._mark(("hooks", key))
        return key

    def _kept(self, index: str | int) -> dict[str, Any]:
        """What a hook keeps when all its settings are replaced: its type and its name."""
        entry = self._document.data["hooks"][index]
        return {key: entry[key] for key in ("type", "name") if isinstance(entry, dict) and key in entry}

    def _mark(self, path: Path) -> None:
        """From now on this place is the override's."""
        for places in (self._document.keys, self._document.values):
            for known in [known for known in places if known[: len(path)] == path]:
                del places[known]
            places[path] = self._text


def _keys(dotted: str) -> list[str]:
    keys = dotted.split(".")
    if not all(keys):
        raise ValueError(f"{dotted!r} is not a key; keys are joined by single dots.")
    return ["work_dir", *keys[1:]] if keys[0] == "experiment_dir" else keys


def _inside(target: Any, key: Any) -> Any:
    """A key as its container wants it: a number from 0 for a list."""
    if not isinstance(target, list):
        return key
    if not str(key).isdigit() or int(key) >= len(target):
        raise ValueError(f"{key!r} is not the number of an item: there are {len(target)}, counted from 0.")
    return int(key)


def _child(target: Any, key: Any) -> Any:
    """What a container holds under a key that is to be deleted."""
    if isinstance(target, list):
        return target[_inside(target, key)]
    if not isinstance(target, dict) or key not in target:
        known = target if isinstance(target, dict) else ()
        raise ValueError(f"there is nothing of this name to delete.{nearest(str(key), known)}")
    return target[key]


def _names(entry: dict[str, Any]) -> set[str]:
    """The names of a hook's type by which an override can mean it: `my_module:MyHook` is MyHook and my as well."""
    kind = entry.get("type")
    if not isinstance(kind, str):
        return set()
    bare = re.split("[:/]", kind)[-1]
    return {kind, bare, snake_case(bare), *class_of_entry(bare)}
