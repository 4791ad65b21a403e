"""Load and validate run files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from hookbus._config.diagnostics import (
    format_errors,
    hook_entries,
    resolve_aliases,
    sort_by_location,
)
from hookbus._config.document import Document
from hookbus._config.models import RunConfig
from hookbus._config.overrides import apply_overrides
from hookbus._config.reading import load_document
from hookbus.errors import ConfigError

__all__ = ["load_config", "parse_config"]


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

    Args:
        source: Path of the file, or its content as a mapping, see `load_config`.
        overrides: Overrides, see `load_config`. Default: none.

    Returns:
        The configuration without invalid sections and hooks, and one message per error.

    Raises:
        ConfigError: If there is no file, no valid YAML, or no mapping at the top level.
    """
    document = load_document(source)
    if isinstance(document.data, Mapping):
        resolve_aliases(document)
        document.problems += apply_overrides(document, overrides)
    elif not document.problems:
        document.problems.append(document.format_problem((), "a run file should be a mapping of keys to values."))
    if not isinstance(document.data, Mapping):
        raise ConfigError(document.problems)
    config, problems = _validate(document)
    try:
        config.build_hooks()
    except ConfigError as error:
        problems += error.problems
    return config, sort_by_location(document, [*document.problems, *problems])


def _validate(document: Document) -> tuple[RunConfig, list[str]]:
    """Validate the data of a document; invalid sections and hooks are dropped so that the rest can be validated."""
    data = dict(document.data)
    entries = hook_entries(document)
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
