"""Load and validate run files."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hookbus._config.diagnostics import format_errors, hook_entries, sort_by_location
from hookbus._config.document import Document, Path
from hookbus._config.hooks import find_hook_class
from hookbus._config.interpolation import reject_redacted_values, resolve_references, settle_types
from hookbus._config.layers import load_layers, reject_late_defaults
from hookbus._config.models import RunConfig
from hookbus._config.overrides import apply_overrides
from hookbus._utils.arguments import check_keywords
from hookbus._utils.settings import validation_messages
from hookbus.errors import ConfigError
from hookbus.hook import Hook


@check_keywords("load_config")
def load_config(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """Load and validate a run file with its defaults: those of the project, of the environment and of `defaults`.

    Args:
        source: Path of the file, or its content as a mapping, which is not modified.
        overrides: Overrides in order of application: `a.b=value` sets a key, `~a.b` deletes it. Default: none.

    Returns:
        The validated configuration.

    Raises:
        ConfigError: If the file is invalid. The error lists all problems with the place that sets the value.
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
    document = load_layers(source)
    if isinstance(document.data, Mapping):
        document.problems += apply_overrides(document, overrides)
        reject_late_defaults(document)
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
