"""Layers of a configuration, later ones override earlier ones.

The table of `pyproject.toml`, environment variables, the files in `defaults` of the run file, the run file. Overrides
of the command line follow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from hookbus._config.diagnostics import resolve_aliases, to_yaml_terms
from hookbus._config.document import Document, Origin
from hookbus._config.environment import read_variables
from hookbus._config.interpolation import resolve_text
from hookbus._config.merging import merge
from hookbus._config.pyproject import find_table
from hookbus._config.reading import load_document
from hookbus._utils.values import format_value
from hookbus.errors import ConfigError

KEY = "defaults"
"""Key of the files that a file extends. `false` in a run file excludes the project and the environment as well."""

MAX_FILES = 100
"""Maximum number of files that provide defaults: two files that each extend two others are soon millions."""


def load_layers(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a run file, or copy a mapping, and merge it into the defaults of project, environment and files.

    Raises:
        ConfigError: If the file cannot be read, or if the mapping contains values that YAML cannot represent.
    """
    top = load_document(source)
    if not isinstance(top.data, dict):
        return top
    directory = "" if isinstance(source, Mapping) else os.path.dirname(top.name)
    is_complete = top.data.get(KEY) is False
    own = [] if is_complete else [find_table([directory, ""]), read_variables()]
    reader = _DefaultsReader()
    layers = [layer for first in own if first is not None for layer in reader.expand(first)]
    layers += reader.expand(top, () if isinstance(source, Mapping) else (top.name,))
    return _combine(layers) if len(layers) > 1 else top


def reject_late_defaults(document: Document) -> None:
    """Add a problem to a document if an override sets `defaults`, whose files have been merged before."""
    if KEY in document.data:
        document.add_problem((KEY,), "cannot be set on the command line. Name the files in the run file.")
        del document.data[KEY]


def _combine(layers: list[Document]) -> Document:
    """Merge layers into a document with the name of the last one, in which the locations of others are origins."""
    document = Document(layers[-1].name, data={})
    for layer in layers[:-1]:
        for locations in (layer.key_locations, layer.value_locations):
            for path, location in locations.items():
                if isinstance(location, tuple):
                    locations[path] = Origin(f"{layer.label}:{location[0]}:{location[1]}")
    for layer in layers:
        merge(document, layer)
    return document


class _DefaultsReader:
    """Read the files that files name in `defaults`."""

    def __init__(self) -> None:
        self._remaining = MAX_FILES

    def expand(self, layer: Document, chain: tuple[str, ...] = ()) -> Iterator[Document]:
        """Yield the layers that a layer extends, then the layer. `chain` are the files that lead to it."""
        if not isinstance(layer.data, dict):
            if not layer.problems:
                layer.add_problem((), "a file of defaults should be a mapping of keys to values.")
            yield layer
            return
        resolve_aliases(layer)
        for index, name in enumerate(_pop_names(layer)):
            try:
                path = self._find_file(name, os.path.dirname(layer.name), chain)
                yield from self.expand(load_document(path, "file"), (*chain, path))
            except ConfigError as error:
                for problem in error.problems:
                    layer.add_problem((KEY, index), problem)
        yield layer

    def _find_file(self, name: str, directory: str, chain: tuple[str, ...]) -> str:
        """Return the path of a file relative to the directory of the file that names it."""
        try:
            path = os.path.normpath(os.path.join(directory, resolve_text(name)))
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        if os.path.realpath(path) in map(os.path.realpath, chain):
            cycle = " -> ".join(Document(file).label for file in (*chain, path))
            raise ConfigError([f"the file extends itself: {cycle}. Remove it."])
        self._remaining -= 1
        if self._remaining < 0:
            raise ConfigError([f"more than {MAX_FILES} files of defaults. Name fewer."])
        return path


def _pop_names(layer: Document) -> list[str]:
    """Remove the key `defaults` and return the names in it."""
    names = layer.data.pop(KEY, False)
    names = [names] if isinstance(names, str) else names
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return names
    if names is not False and (KEY,) not in layer.invalid_paths:
        problem = f"should be a file, or a list such as [base.yaml], got {format_value(names)}."
        layer.add_problem((KEY,), to_yaml_terms(problem))
    return []
