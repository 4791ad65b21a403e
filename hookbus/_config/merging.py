"""Merge layers of configuration: mappings by key, hooks by name; all other values are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookbus._config.diagnostics import HookList, expand_names, expand_short_form, normalize_hooks
from hookbus._config.document import Document, Path, iter_paths
from hookbus._config.hooks import add_instance_name, find_hook_class
from hookbus._config.overrides import get_type_names
from hookbus._utils.known_keys import LIMITS


class RemovedHook(dict[str, Any]):
    """Settings that disable a hook of an earlier layer. Those of a later layer replace them."""


def merge(document: Document, layer: Document) -> None:
    """Merge the data of a layer into a document, with precedence over the data that the document already contains."""
    document.problems += layer.problems
    if isinstance(layer.data, dict):
        _Merger(document, layer).merge_mappings(document.data, layer.data, (), ())


class _Merger:
    """Merge a layer into a document. The paths of hooks in the document may differ from those in the layer."""

    def __init__(self, document: Document, layer: Document) -> None:
        self._document, self._layer = document, layer

    def merge_mappings(self, below: dict[Any, Any], above: dict[Any, Any], path: Path, source: Path) -> None:
        """Merge a mapping of the layer at the path `source` into a mapping of the document."""
        self._copy_location(path, source)
        if path == ("training",):
            self._replace_limit(below, above)
        for key, value in above.items():
            self._merge_value(below, key, value, (*path, key), (*source, key))

    def _merge_value(self, below: dict[Any, Any], key: Any, value: Any, path: Path, source: Path) -> None:
        if len(path) == 1 and isinstance(value, dict):
            expand_short_form(self._document, key)
        old = below.get(key)
        if path == ("hooks",) and old and _has_hooks(old) and _has_hooks(value):
            self._merge_hooks()
        elif isinstance(old, dict) and isinstance(value, dict) and not _changes_type(old, value):
            self.merge_mappings(old, value, path, source)
        else:
            self._replace(below, key, value, path, source)

    def _replace(self, below: dict[Any, Any], key: Any, value: Any, path: Path, source: Path) -> None:
        """Replace a value of the document, together with the locations in it."""
        if key in below:
            self._discard(below[key], path)
        below[key] = value
        for inner in iter_paths(value):
            self._copy_location((*path, *inner), (*source, *inner))

    def _discard(self, value: Any, path: Path) -> None:
        """Remove the locations of a value, whose settings are recorded as replaced."""
        for place, leaf in iter_settings(value, path):
            location = self._document.find_location(place)
            self._document.replaced.setdefault(place, []).insert(0, (location, leaf))
        for place in iter_paths(value, path):
            self._remove_location(place)
            self._document.invalid_paths.discard(place)

    def _copy_location(self, path: Path, source: Path) -> None:
        """Use the locations of a path in the layer for a path in the document."""
        self._remove_location(path)
        if source in self._layer.key_locations:
            self._document.key_locations[path] = self._layer.key_locations[source]
        if source in self._layer.value_locations:
            self._document.value_locations[path] = self._layer.value_locations[source]
        if source in self._layer.invalid_paths:
            self._document.mark_invalid(path)

    def _remove_location(self, path: Path) -> None:
        self._document.key_locations.pop(path, None)
        self._document.value_locations.pop(path, None)

    def _replace_limit(self, below: dict[Any, Any], above: dict[Any, Any]) -> None:
        if all(above.get(limit) is None for limit in LIMITS):
            return
        for limit in LIMITS:
            if limit not in above and limit in below:
                self._discard(below.pop(limit), ("training", limit))

    # -- hooks -------------------------------------------------------------------------------------

    def _merge_hooks(self) -> None:
        """Merge the hooks of the layer by name. New hooks follow those of the document."""
        for document in (self._document, self._layer):
            normalize_hooks(document)
            for key in expand_names(document.data["hooks"]):
                if (location := document.value_locations.get(("hooks", key))) is not None:
                    document.value_locations["hooks", key, "type"] = location
        above, below = self._layer.data["hooks"], self._document.data["hooks"]
        if isinstance(above, HookList) and not isinstance(below, HookList):
            below = self._document.data["hooks"] = HookList(below)
        self._copy_location(("hooks",), ("hooks",))
        matches = _match_hooks(below, above)
        for key, entry in above.items():
            if key in matches:
                self._merge_hook(below, matches[key], key, entry)
            else:
                new = key if isinstance(key, str) else len(below)
                self._replace(below, new, entry, ("hooks", new), ("hooks", key))

    def _merge_hook(self, below: dict[Any, Any], key: Any, source_key: Any, entry: Any) -> None:
        """Merge an entry of the layer into the hook with a key in the document."""
        path, source = ("hooks", key), ("hooks", source_key)
        if entry is None:
            self._replace(below, key, _disable(below[key]), path, source)
        elif _is_replaced(key, below[key], entry):
            is_unnamed = isinstance(key, int) and isinstance(source_key, str) and isinstance(entry, dict)
            settings = add_instance_name(source_key, entry) if is_unnamed else entry
            self._replace(below, key, settings, path, source)
        else:
            self.merge_mappings(below[key], entry, path, source)


def iter_settings(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of each setting; a list and an empty mapping are one value."""
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for key, item in value.items():
        yield from iter_settings(item, (*path, key))


def _match_hooks(below: dict[Any, Any], above: dict[Any, Any]) -> dict[Any, Any]:
    """Return the key of the hook in `below` for the key of each entry in `above` with the same key or name."""
    matches = {key: key for key in above if isinstance(key, str) and key in below}
    free = {key: _get_names(key, entry) for key, entry in below.items() if key not in matches}
    for key in [key for key in above if key not in matches]:
        names = _get_names(key, above[key])
        match = next((known for known, others in free.items() if names & others), None)
        # Two entries of one layer are two hooks, so a hook is matched once.
        if match is not None:
            matches[key] = match
            del free[match]
    return matches


def _has_hooks(value: Any) -> bool:
    """Return whether a value is a list of hooks, a mapping of names to settings, or empty."""
    is_mapping = isinstance(value, dict) and not isinstance(value.get("type"), str)
    return value is None or isinstance(value, list) or is_mapping


def _changes_type(below: dict[Any, Any], above: dict[Any, Any]) -> bool:
    """Return whether a mapping has another type than the one below it, whose settings are then those of another."""
    return "type" in below and "type" in above and below["type"] != above["type"]


def _is_replaced(key: str | int, below: Any, above: Any) -> bool:
    """Return whether an entry replaces the settings of a hook: those of a removed hook, or of another type."""
    if isinstance(below, RemovedHook) or not isinstance(below, dict) or not isinstance(above, dict):
        return True
    if "type" not in above:
        return False
    # The key of an entry without a type is its type only if there is such a hook.
    type_ = below.get("type") or (key if find_hook_class(key) is not None else above["type"])
    return bool(type_ != above["type"]) and not get_type_names({"type": type_}) & get_type_names(above)


def _get_names(key: str | int, entry: Any) -> set[str]:
    """Return the names of a hook: its instance name and its key, else those of its type."""
    settings = entry if isinstance(entry, dict) else {}
    if isinstance(key, str):
        settings = {"type": key, **settings}
    names = {name for name in (key, settings.get("name")) if isinstance(name, str)}
    return names if names and settings.get("type") != key else names | get_type_names(settings)


def _disable(settings: Any) -> RemovedHook | None:
    """Return the settings that disable a hook; null suffices if its key is its type."""
    kept = {name: settings[name] for name in ("type", "name") if name in (settings or {})}
    return RemovedHook({**kept, "enabled": False}) if "type" in kept else None
