"""Command-line overrides: `training.epochs=3`, `hooks.checkpoint.interval=2`, `~hooks.ema`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hookbus._config.diagnostics import HookList, expand_names, expand_short_form, normalize_hooks
from hookbus._config.document import Document, Path
from hookbus._config.hooks import DEFAULT_HOOKS
from hookbus._config.yaml import MAX_DEPTH, invalid_character, parse_value
from hookbus._utils.imports import suggest_if_close
from hookbus._utils.known_keys import LIMITS
from hookbus._utils.packages import hook_names_of_entry
from hookbus._utils.redaction import redact
from hookbus._utils.values import format_value, shorten
from hookbus.hook import snake_case

MAX_INDEX_DIGITS = 10
"""Number of digits that no index has."""


def apply_overrides(document: Document, overrides: Iterable[str]) -> list[str]:
    """Apply overrides to the data of a document. Each changed value stores the override as its location.

    A hook is referred to by its instance name, its type, or its index in the list, starting at 0. A hook that the file
    does not contain is added. `~` disables a hook, including a default hook.
    """
    problems = []
    for text in overrides:
        try:
            _Override(document, text).apply()
        except ValueError as error:
            problems.append(document.format_problem_at(text, str(error)))
    return problems


def drop_replaced(overrides: Sequence[str]) -> list[str]:
    """Return overrides without those whose key a later one sets again: of `seed=1 seed=2`, only the last.

    An override is kept if one in between concerns the same section, and may depend on it. Those of hooks are kept: a
    hook has several names.

    Args:
        overrides: Overrides in their order.
    """
    texts = [re.sub(r"^(~?)experiment_dir\b", r"\1work_dir", text) for text in overrides]
    sections = [re.split(r"[.=]", text.removeprefix("~"))[0] for text in texts]
    return [text for index, text in enumerate(overrides) if not _is_replaced(texts, sections, index)]


def _is_replaced(texts: Sequence[str], sections: Sequence[str], index: int) -> bool:
    """Return whether the next override of the same section sets the same key."""
    key, equals, _ = texts[index].partition("=")
    following = next((i for i in range(index + 1, len(texts)) if sections[i] == sections[index]), None)
    if following is None or not equals or sections[index] == "hooks":
        return False
    return texts[following].startswith(f"{key}=")


class _Override:
    """A single override. Raises ValueError if it is invalid."""

    def __init__(self, document: Document, text: str) -> None:
        self._document, self._text = document, text

    def apply(self) -> None:
        text = self._text
        if text.startswith("~"):
            self._delete(_split_keys(text[1:]))
            return
        dotted, equals, value_text = text.partition("=")
        if not equals:
            raise ValueError("invalid override. Write key=value to set a key, or ~key to delete it.")
        keys, value = _split_keys(dotted), parse_value(value_text)
        if keys[0] != "hooks" or len(keys) == 1:
            self._set(keys, value)
        elif len(keys) == 2 and value is None:
            self._delete(keys)
        else:
            self._set_hook(keys, value)

    def _set_hook(self, keys: list[str], value: Any) -> None:
        index = self._find_hook(keys[1])
        index = self._add_hook({"type": keys[1]}) if index is None else index
        entry = self._get_hooks()[index]
        if len(keys) == 2 and isinstance(value, dict) and isinstance(entry, dict):
            value = {**{key: entry[key] for key in ("type", "name") if key in entry}, **value}
        self._set(["hooks", index, *keys[2:]], value)

    def _set(self, keys: list[Any], value: Any) -> None:
        target: Any = self._document.data
        path: Path = ()
        if len(keys) > 1:
            expand_short_form(self._document, keys[0])
        if len(keys) == 2 and keys[0] == "training" and keys[1] in LIMITS and value is not None:
            self._replace_limits(keys[1])
        for key in keys[:-1]:
            inner = _to_index(target, key)
            path = (*path, inner)
            child = target.get(inner) if isinstance(target, dict) else target[inner]
            if child is None:
                child = target[inner] = {}
                self._set_location(path)
            if not isinstance(child, (dict, list)):
                raise ValueError(
                    f"{shorten('.'.join(map(str, path)))} is {format_value(redact(child, str(inner)))}, which has "
                    "no keys."
                )
            target = child
        last = _to_index(target, keys[-1])
        target[last] = value
        self._set_location((*path, last))

    def _replace_limits(self, limit: str) -> None:
        """Set the other limits of the training to null, except those of overrides: two of them are an error."""
        training = self._document.data.get("training")
        for other in LIMITS if isinstance(training, dict) else ():
            is_override = isinstance(self._document.find_location(("training", other)), str)
            if other != limit and training.get(other) is not None and not is_override:
                training[other] = None
                self._set_location(("training", other))

    def _delete(self, keys: list[Any]) -> None:
        if keys[0] == "hooks" and len(keys) > 1:
            index = self._find_hook(keys[1])
            if len(keys) == 2:
                self._disable_hook(keys[1], index)
                return
            if index is None:
                raise self._unknown_hook_error(keys[1])
            keys = ["hooks", index, *keys[2:]]
        target: Any = self._document.data
        path: Path = ()
        for key in keys[:-1]:
            path, target = (*path, _to_index(target, key)), _get_child(target, key)
        _get_child(target, keys[-1])
        del target[_to_index(target, keys[-1])]
        # The items that follow in a list have moved, so their locations are no longer valid.
        self._set_location(path if isinstance(target, list) else (*path, keys[-1]))

    def _disable_hook(self, name: str, index: str | int | None) -> None:
        """Disable a hook."""
        # The entry is kept with `enabled: false`, because a removed entry would enable the default hook.
        if index is not None:
            self._set(["hooks", index, "enabled"], False)
        elif {name, *hook_names_of_entry(name)} & set(DEFAULT_HOOKS):
            self._add_hook({"type": name, "enabled": False})
        else:
            raise self._unknown_hook_error(name)

    def _unknown_hook_error(self, name: str) -> ValueError:
        names = {
            str(name_) for key, entry in self._entries() for name_ in (key, entry.get("name"), *get_type_names(entry))
        }
        return ValueError(f"unknown hook {format_value(name)}.{suggest_if_close(name, [*names, *DEFAULT_HOOKS])}")

    def _find_hook(self, name: str) -> str | int | None:
        """Return the key of a hook in the file: by instance name, else by type, else by index; or None."""
        entries = list(self._entries())
        for matches in (
            [key for key, entry in entries if name in (key, entry.get("name"))],
            [key for key, entry in entries if name in get_type_names(entry)],
        ):
            if len(matches) > 1:
                choices = shorten(", ".join(f"hooks.{key}" for key in matches))
                raise ValueError(f"{format_value(name)} refers to more than one hook. Use one of: {choices}.")
            if matches:
                return matches[0]
        hooks = self._get_hooks()
        if name.isdecimal() and isinstance(hooks, HookList):
            keys = list(hooks)
            key: str | int = keys[_to_index(keys, name)]
            return key
        return None

    def _get_hooks(self) -> dict[str | int, Any]:
        """Return the hooks in the file by name or index."""
        normalize_hooks(self._document)
        hooks = self._document.data["hooks"]
        if not isinstance(hooks, dict):
            raise ValueError(f"hooks should be a list or a mapping, got {format_value(redact(hooks))}.")
        expand_names(hooks)
        return hooks

    def _entries(self) -> Iterator[tuple[str | int, dict[str, Any]]]:
        """Iterate over the keys and settings of the hooks in the file that are mappings or names."""
        for key, entry in self._get_hooks().items():
            if entry is None or isinstance(entry, dict):
                yield key, {"type": key, **(entry or {})}

    def _add_hook(self, entry: dict[str, Any]) -> str | int:
        """Add a hook to the file and return its key."""
        hooks = self._get_hooks()
        key: str | int = len(hooks) if isinstance(hooks, HookList) else entry["type"]
        hooks[key] = entry
        self._set_location(("hooks", key))
        return key

    def _set_location(self, path: Path) -> None:
        """Set the override as the location of a path and remove the locations below it."""
        for locations in (self._document.key_locations, self._document.value_locations):
            # A value without a location has none below it: all locations are searched only if something is replaced.
            for known in [known for known in locations if known[: len(path)] == path] if path in locations else ():
                del locations[known]
            locations[path] = self._text


def _split_keys(dotted: str) -> list[str]:
    keys = dotted.split(".")
    if not all(keys):
        raise ValueError(f"invalid key {format_value(dotted)}. Separate keys with single dots.")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels.")
    if error := invalid_character(dotted):
        raise ValueError(error)
    return ["work_dir", *keys[1:]] if keys[0] == "experiment_dir" else keys


def _to_index(target: Any, key: Any) -> Any:
    """Convert a key to the type of its container: an index for a list."""
    if not isinstance(target, list):
        return key
    # `int` rejects texts of thousands of digits.
    is_index = str(key).isdecimal() and len(str(key)) < MAX_INDEX_DIGITS
    if not is_index or int(key) >= len(target):
        raise ValueError(
            f"invalid index {format_value(key)} in a list of length {len(target)}. Use an integer, starting at 0."
        )
    return int(key)


def _get_child(target: Any, key: Any) -> Any:
    """Return the value of a key that is to be deleted."""
    if isinstance(target, list):
        return target[_to_index(target, key)]
    if not isinstance(target, dict) or key not in target:
        known = target if isinstance(target, dict) else ()
        raise ValueError(f"cannot delete an unknown key.{suggest_if_close(str(key), known)}")
    return target[key]


def get_type_names(entry: dict[str, Any]) -> set[str]:
    """Return the names of a hook type that overrides accept: `my_module:MyHook` is also `MyHook` and `my`."""
    type_name = entry.get("type")
    if not isinstance(type_name, str):
        return set()
    bare = re.split("[:/]", type_name)[-1]
    return {type_name, bare, snake_case(bare), *hook_names_of_entry(bare)}
