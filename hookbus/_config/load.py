"""Load and validate run files."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from pydantic import BaseModel, ValidationError

from hookbus._config import yaml as _yaml
from hookbus._config.diagnostics import format_errors, hook_entries, resolve_aliases, sort_by_location
from hookbus._config.document import Document, Path
from hookbus._config.hooks import find_hook_class
from hookbus._config.interpolation import reject_redacted_values, resolve_references, settle_types
from hookbus._config.models import RunConfig
from hookbus._config.overrides import apply_overrides
from hookbus._config.yaml import MAX_DEPTH, MAX_INTEGER_BITS, MAX_NODES, invalid_character
from hookbus._utils.arguments import check_keywords
from hookbus._utils.files import open_regular_file
from hookbus._utils.settings import validation_messages
from hookbus._utils.values import format_value
from hookbus.errors import ConfigError
from hookbus.hook import Hook


@check_keywords("load_config")
def load_config(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Load and validate a run file.

    Args:
        source: Path of the file, or its content as a mapping, which is not modified.
        overrides: Overrides in order of application: `a.b=value` sets a key, `~a.b` deletes it. Default: none.

    Returns:
        The validated configuration.

    Raises:
        ConfigError: If the file is invalid. The error lists all problems with file, line and column.
    """
    config, problems = parse_config(source, overrides)
    if problems:
        raise ConfigError(problems)
    return config


def parse_config(
    source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()
) -> tuple[RunConfig, list[str]]:
    """Parse a run file without raising on validation errors, so that callers can report further errors.

    Raises:
        ConfigError: If there is no file, no valid YAML, or no mapping at the top level.
    """
    document = load_document(source)
    if isinstance(document.data, Mapping):
        resolve_aliases(document)
        document.problems += apply_overrides(document, overrides)
        reject_redacted_values(document)
        resolve_references(document)
    elif not document.problems:
        document.add_problem((), "a run file should be a mapping of keys to values.")
    if not isinstance(document.data, Mapping):
        raise ConfigError(document.problems)
    config, problems = _validate(document)
    config.warn_of_deprecated_settings()
    try:
        config.build_hooks()
    except ConfigError as error:
        problems += error.problems
    return config, sort_by_location(document, [*document.problems, *problems])


def _validate(document: Document) -> tuple[RunConfig, list[str]]:
    """Validate the data of a document; invalid sections and hooks are dropped so that the rest can be validated."""
    _settle_sections(document)
    data = dict(document.data)
    entries = hook_entries(document)
    for entry, path in entries or ():
        _settle_hook(document, entry, path)
    if entries is not None:
        data["hooks"] = [entry for entry, _ in entries]
    problems: list[str] = []
    invalid_sections = {path[0] for path in document.invalid_paths if path}
    try:
        # JSON mode: strict validation then accepts exactly the types that YAML can represent.
        config = RunConfig.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = format_errors(RunConfig, document, data, entries, error)
        locations = [details["loc"] for details in error.errors()]
        invalid_hooks = {loc[1] for loc in locations if loc[0] == "hooks" and len(loc) > 1}
        invalid_sections |= {loc[0] for loc in locations}
        entries = [entry for i, entry in enumerate(entries or []) if i not in invalid_hooks]
        valid = {key: value for key, value in data.items() if key not in invalid_sections}
        hooks = {"hooks": [entry for entry, _ in entries]}
        config = RunConfig.model_validate_json(json.dumps({**valid, **hooks}))
    config._document, config._paths = document, [path for _, path in entries or []]
    config._invalid_sections = frozenset(map(str, invalid_sections))
    return config, problems


def _settle_sections(document: Document) -> None:
    """Select the types of the references in all sections except the hooks."""
    sections = {key: value for key, value in document.data.items() if key != "hooks"}
    references = [(path, item.text) for path, item in document.references.items() if path[0] != "hooks"]
    settle_types(sections, references, lambda: _find_errors(RunConfig, sections))
    document.data.update(sections)


def _settle_hook(document: Document, entry: Any, path: Path) -> None:
    """Select the types of the references in the settings of a hook with a config model."""
    references = [
        (place[len(path) :], item.text)
        for place, item in document.references.items()
        if place[: len(path)] == path and len(place) > len(path)
    ]
    if not references or not isinstance(entry, dict):
        return
    cls = find_hook_class(entry.get("type"))
    if cls is not None and issubclass(cls, Hook) and "config" in inspect.signature(cls).parameters:
        settle_types(entry, references, lambda: _find_errors(cls.Config, entry))


def _find_errors(model: type[BaseModel], data: Any) -> list[Path]:
    try:
        model.model_validate_json(json.dumps({key: value for key, value in data.items() if key != "type"}))
    except ValidationError as error:
        return list(validation_messages(error, model, data))
    return []


MAX_FILE_SIZE = 2**20
"""Maximum size of a run file in bytes. A larger file is likely another file, such as a checkpoint."""


def load_document(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a file, or copy a mapping.

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
        self._remaining_values -= 1
        if len(path) > MAX_DEPTH:
            raise _invalid_value((), f"nested deeper than {MAX_DEPTH} levels.")
        if self._remaining_values < 0:
            raise _invalid_value((), f"more than {MAX_NODES} values.")
        if isinstance(value, Mapping):
            return {_copy_key(key, path): self.copy(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, (*path, i)) for i, item in enumerate(value)]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if problem := _find_problem(value):
            raise _invalid_value(path, problem)
        return value


def _copy_key(key: object, path: Path) -> str:
    if error := invalid_character(str(key)):
        raise _invalid_value((*path, str(key)), error)
    return str(key)


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
