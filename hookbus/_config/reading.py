"""Read run files and mappings: size and encoding of files, and copies of mappings."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from types import NoneType
from typing import Any

from hookbus._config import yaml as _yaml
from hookbus._config.document import Document, Path
from hookbus._config.yaml import MAX_DEPTH, MAX_INTEGER_BITS, MAX_NODES, invalid_character
from hookbus._utils.files import open_regular_file
from hookbus._utils.values import format_value
from hookbus.errors import ConfigError

MAX_FILE_SIZE = 2**20
"""Maximum size of a run file in bytes. A larger file is likely another file, such as a checkpoint."""

OBJECT_HINT = "Pass objects to the Trainer instead."
"""Advice for values that no run file can contain."""


def load_document(source: str | os.PathLike[str] | Mapping[str, Any], kind: str = "run file") -> Document:
    """Read a file, or copy a mapping.

    Args:
        source: Path of the file, or a mapping.
        kind: Name of the kind of file, for messages.

    Raises:
        ConfigError: If the file cannot be read, or if the mapping contains values that YAML cannot represent.
    """
    if isinstance(source, Mapping):
        return Document("config", data=copy_mapping(source, Document("config")))
    name = str(pathlib.Path(source))
    return _yaml.parse(read_text(name, kind), name)


def read_text(name: str, kind: str) -> str:
    """Return the text of a file with line feeds as its line ends.

    Raises:
        ConfigError: If the file cannot be read, or is no UTF-8.
    """
    label = Document(name).label
    try:
        data = _read(name)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{label}: the {kind} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{label}:{line}:{column}: invalid UTF-8: {error.reason}. Save the file as UTF-8.") from None
    return text.replace("\r\n", "\n")


def copy_mapping(source: Mapping[str, Any], document: Document, hint: str = OBJECT_HINT) -> Any:
    """Return a deep copy within the limits of a run file.

    Args:
        source: Nested built-in types.
        document: Document that the messages name.
        hint: Advice for values that YAML cannot represent.

    Raises:
        ConfigError: If a value exceeds the limits, or if YAML cannot represent it.
    """
    return _Copier(document, hint).copy(source, ())


def _read(name: str) -> bytes:
    """Return the content of a run file.

    Raises:
        OSError: If the file cannot be read, is not a regular file, or is too large.
    """
    with open_regular_file(name) as file:
        size = os.fstat(file.fileno()).st_size
        # The size is checked first so that a huge file is not read; it may grow in the meantime.
        data = file.read(MAX_FILE_SIZE + 1) if size <= MAX_FILE_SIZE else b""
    if max(size, len(data)) > MAX_FILE_SIZE:
        raise OSError(0, f"{max(size, len(data)):,} bytes, but a run file has at most {MAX_FILE_SIZE:,}", name)
    return data


class _Copier:
    """Return deep copies of nested built-in types within the limits of a run file."""

    def __init__(self, document: Document, hint: str) -> None:
        self._document, self._hint = document, hint
        self._remaining_values = MAX_NODES

    def copy(self, value: Any, path: Path) -> Any:
        self._remaining_values -= 1
        if len(path) > MAX_DEPTH:
            raise self._invalid_value((), f"nested deeper than {MAX_DEPTH} levels.")
        if self._remaining_values < 0:
            raise self._invalid_value((), f"more than {MAX_NODES} values.")
        if isinstance(value, Mapping):
            return {self._copy_key(key, path): self.copy(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, (*path, i)) for i, item in enumerate(value)]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if problem := self._find_problem(value):
            raise self._invalid_value(path, problem)
        return value

    def _copy_key(self, key: object, path: Path) -> str:
        if error := invalid_character(str(key)):
            raise self._invalid_value((*path, str(key)), error)
        return str(key)

    def _find_problem(self, value: Any) -> str:
        """Return the problem of a scalar that YAML cannot represent, or ""."""
        if isinstance(value, str):
            return invalid_character(value)
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            return f"integer of more than {MAX_INTEGER_BITS} bits."
        if isinstance(value, (int, float, NoneType)):
            return ""
        return f"should be a built-in type, got {format_value(value)}. {self._hint}"

    def _invalid_value(self, path: Path, message: str) -> ConfigError:
        return ConfigError([self._document.format_problem(path, message)])
