"""Reading of run files and copying of mappings, both of bounded size."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
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


def load_document(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a file, or copy a mapping.

    Args:
        source: Path of the file, or its content as a mapping.

    Returns:
        The document, without validation.

    Raises:
        ConfigError: If the file cannot be read, or if the mapping contains values that YAML cannot represent.
    """
    if isinstance(source, Mapping):
        return Document("config", data=_Copier().copy(source, ()))
    name = str(pathlib.Path(source))
    label = Document(name).label
    try:
        data = _read(name)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{label}: the run file cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError(f"{label}:{line}:{column}: invalid UTF-8: {error.reason}. Save the file as UTF-8.") from None
    return _yaml.parse(text.replace("\r\n", "\n"), name)


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

    def __init__(self) -> None:
        self._remaining_values = MAX_NODES

    def copy(self, value: Any, path: Path) -> Any:
        self._check_limits(path)
        if isinstance(value, Mapping):
            return {key: self.copy(item, (*path, key)) for key, item in self._iter_items(value, path)}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, (*path, i)) for i, item in enumerate(value)]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if problem := _find_problem(value):
            raise _invalid_value(path, problem)
        return value

    def _check_limits(self, path: Path) -> None:
        self._remaining_values -= 1
        if len(path) > MAX_DEPTH:
            raise _invalid_value((), f"nested deeper than {MAX_DEPTH} levels.")
        if self._remaining_values < 0:
            raise _invalid_value((), f"more than {MAX_NODES} values.")

    def _iter_items(self, value: Mapping[Any, Any], path: Path) -> Iterator[tuple[str, Any]]:
        for key, item in value.items():
            if error := invalid_character(str(key)):
                raise _invalid_value((*path, str(key)), error)
            yield str(key), item


def _find_problem(value: Any) -> str:
    """Return the problem of a scalar that YAML cannot represent, or ""."""
    if isinstance(value, str):
        return invalid_character(value)
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return f"integer of more than {MAX_INTEGER_BITS} bits."
    if isinstance(value, (int, float, NoneType)):
        return ""
    return f"should be a built-in type, got {format_value(value)}. Pass objects to the Trainer instead."


def _invalid_value(path: Path, message: str) -> ConfigError:
    return ConfigError([Document("config").format_problem(path, message)])
