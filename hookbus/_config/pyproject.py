"""The table `[tool.hookbus]` of the nearest `pyproject.toml`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from hookbus._config.document import Document, Origin, iter_paths
from hookbus._config.reading import copy_mapping, read_text
from hookbus._utils.values import escape_control_characters, format_value
from hookbus.errors import ConfigError, get_relative_path

FILE = "pyproject.toml"
TABLE = "[tool.hookbus]"


def find_table(directories: Iterable[str]) -> Document | None:
    """Return the first table of a file in one of the directories or above it, or None without any."""
    folders = dict.fromkeys(folder for directory in directories for folder in _iter_ancestors(directory))
    documents = (_read_table(os.path.join(folder, FILE)) for folder in folders)
    return next((document for document in documents if document is not None), None)


def _iter_ancestors(directory: str) -> Iterator[str]:
    folder = os.path.abspath(directory)
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        yield (folder := parent)


def _read_table(path: str) -> Document | None:
    """Return the table of a file, or None if the file or the table does not exist."""
    if not os.path.isfile(path):
        return None
    document = Document(get_relative_path(path))
    try:
        text = read_text(document.name, "file")
        # A file that does not name hookbus need not be valid.
        tools = tomllib.loads(text).get("tool") if "hookbus" in text else None
        if not isinstance(tools, dict) or "hookbus" not in tools:
            return None
        _fill(document, tools["hookbus"])
    except ConfigError as error:
        document.problems += error.problems
    except tomllib.TOMLDecodeError as error:
        document.problems.append(f"{document.label}: invalid TOML: {escape_control_characters(str(error))}.")
    return document


def _fill(document: Document, table: Any) -> None:
    """Copy the table to a document, with the table as the location of every value."""
    origin = Origin(document.label, TABLE)
    document.value_locations[()] = origin
    if not isinstance(table, dict):
        document.add_problem((), f"should be a table, got {format_value(table)}.")
        return
    document.data = copy_mapping(table, document, "Quote it.")
    document.value_locations |= dict.fromkeys(iter_paths(document.data), origin)
