"""Settings that differ from the built-in defaults, with the place that sets each of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any

from hookbus._config.diagnostics import normalize_hooks
from hookbus._config.document import Document, Location, Path, iter_paths
from hookbus._config.hooks import hide_declared_settings
from hookbus._config.interpolation import resolve_references
from hookbus._config.layers import load_layers
from hookbus._config.load import load_config
from hookbus._config.merging import iter_settings
from hookbus._config.models import RunConfig
from hookbus._utils.redaction import redact
from hookbus._utils.secrets import REDACTED


@dataclass(frozen=True)
class Source:
    """A value and the place that sets it.

    Attributes:
        value: The value, without secrets.
        source: File with line and column, environment variable, table, or `command line`.
    """

    value: Any
    source: str


@dataclass(frozen=True)
class Setting:
    """A setting of a run.

    Attributes:
        path: Keys, joined by dots. A hook in a list is named by its name or its type.
        value: The value, without secrets.
        source: Place that sets the value, see `Source`.
        overrides: The values that it replaces, in descending order of precedence.
        dropped: Whether `source` drops the setting, for example by a section of another type. Its value is None.
    """

    path: str
    value: Any
    source: str
    overrides: list[Source]
    dropped: bool = False


def list_settings(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> list[Setting]:
    """Return the settings of a run file, its defaults and overrides, in the order of the keys of a run file.

    Settings that a later layer or an override drops are included.

    Raises:
        ConfigError: If the file is invalid. The error lists all problems.
    """
    config, below = load_config(source, overrides), load_layers(source)
    normalize_hooks(below)
    describer, order = _Describer(config, below), list(RunConfig.model_fields)
    paths = [path for path, _ in iter_settings(config._document.data) if path != ("hooks",)]
    settings = [(path, describer.describe(path)) for path in paths] + list(describer.describe_dropped(paths))
    hooks = list(config._document.data["hooks"])

    def get_position(path: Path) -> tuple[int, int]:
        return order.index(str(path[0])), hooks.index(path[1]) if path[0] == "hooks" else 0

    # The dropped settings of a section, or of a hook, follow its other settings.
    return [setting for _, setting in sorted(settings, key=lambda pair: get_position(pair[0]))]


class _Describer:
    """Describe the settings of a configuration, given the document below its overrides."""

    def __init__(self, config: RunConfig, below: Document) -> None:
        self._document, self._below = config._document, below
        self._values_below = dict(iter_settings(below.data))
        hooks: dict[Any, Any] = config._document.data["hooks"]
        types = {path[1]: settings["type"] for path, settings in zip(config._paths, config.hooks, strict=True)}
        self._types = {key: types.get(key, key) for key in hooks}
        self._labels = _get_labels(hooks)
        shown = {
            key: self._hide(key, entry) if isinstance(entry, dict) and entry else entry for key, entry in hooks.items()
        }
        self._shown = redact({**config._document.data, "hooks": shown})

    def describe(self, path: Path) -> Setting:
        """Return a setting that is in effect."""
        value, location = reduce(getitem, map(str, path), self._shown), self._find_location(path)
        return self._build(path, value, location, self._find_replaced(path, location))

    def describe_dropped(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Setting]]:
        """Yield the path of each setting that is not among those in effect, and the setting."""
        known = set(paths)
        for path in dict.fromkeys([*self._document.replaced, *self._values_below]):
            # A hook of a list may have moved; the key `hooks` itself is no setting.
            is_listed = path[0] != "hooks" or (len(path) > 2 and path[1] in self._labels)
            if path not in known and is_listed and not self._is_section(path):
                location = self._document.find_location(path)
                yield (
                    path,
                    replace(self._build(path, None, location, self._find_replaced(path, location)), dropped=True),
                )

    def _is_section(self, path: Path) -> bool:
        """Return whether a path refers to settings in effect, as the path of an empty or short section does."""
        try:
            return isinstance(reduce(getitem, path, self._document.data), dict)
        except (KeyError, IndexError, TypeError):
            return False

    def _find_replaced(self, path: Path, location: Location | None) -> list[tuple[Location | None, Any]]:
        """Return the locations and the values that a value at a location replaces."""
        replaced = self._document.replaced.get(path, [])
        if isinstance(location, str) and path in self._values_below:
            return [(self._below.find_location(path), self._values_below[path]), *replaced]
        return replaced

    def _build(
        self, path: Path, value: Any, location: Location | None, replaced: list[tuple[Location | None, Any]]
    ) -> Setting:
        sources = [
            Source(REDACTED if value == REDACTED else self._redact(path, old), self._document.format_location(place))
            for place, old in replaced
        ]
        label = (path[0], self._labels[path[1]], *path[2:]) if path[0] == "hooks" else path
        return Setting(".".join(map(str, label)), value, self._document.format_location(location), sources)

    def _find_location(self, path: Path) -> Location | None:
        """Return the location of a value. An override of an item of a list is that of the list."""
        locations = self._document.value_locations
        inner = (locations.get(item) for item in iter_paths(reduce(getitem, path, self._document.data), path))
        override = next((location for location in inner if isinstance(location, str)), None)
        return override or self._document.find_location(path)

    def _redact(self, path: Path, value: Any) -> Any:
        """Return a replaced value, with its references resolved, without secrets."""
        document = Document("", data=_nest(path, value))
        resolve_references(document)
        data = _nest(path, value) if document.problems else document.data
        if path[0] == "hooks" and len(path) > 2:
            data["hooks"][path[1]] = self._hide(path[1], data["hooks"][path[1]])
        return reduce(getitem, map(str, path), redact(data))

    def _hide(self, key: str | int, settings: Any) -> Any:
        return hide_declared_settings({"type": self._types[key], **settings})


def _nest(path: Path, value: Any) -> Any:
    """Return mappings in which a value is at a path."""
    return reduce(lambda inner, key: {key: inner}, reversed(path), value)


def _get_labels(hooks: Mapping[str | int, Any]) -> dict[str | int, str]:
    """Return the name of each hook: its key, else its name or its type, else its index if others have the same."""
    names = {
        key: str((isinstance(entry, dict) and (entry.get("name") or entry.get("type"))) or entry)
        if isinstance(key, int)
        else key
        for key, entry in hooks.items()
    }
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 else str(key) for key, name in names.items()}
