"""Hooks, aliases and paths of a run file, and conversion of validation errors to messages with locations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from hookbus._config.document import Document, Path
from hookbus._config.hooks import add_instance_name, find_hook_class
from hookbus._utils.known_keys import explain_unknown_key
from hookbus._utils.plugin_entries import blocked_names
from hookbus._utils.settings import validation_messages
from hookbus._utils.variables import BLOCK_VARIABLE
from hookbus.discovery import list_entries, warn_of_unknown_blocks
from hookbus.errors import HookWarning

Entries = list[tuple[Any, Path]]
"""Settings of each hook with their path in the file."""

YAML_TERMS = {
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
    "a valid array": "a list",
    "got None.": "got null.",
    "got True.": "got true.",
    "got False.": "got false.",
}
"""Terms of pydantic's messages and the corresponding YAML terms."""

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 4096 - 256
"""Limits of Linux and macOS, less a reserve for the names of the files in a directory."""

PATH_KEYS = frozenset({"path", "dir", "directory", "file", "filename", "folder"})
PATH_SUFFIXES = tuple(f"_{key}" for key in PATH_KEYS)


def resolve_aliases(document: Document) -> None:
    """Rename the key `experiment_dir`, an alias of `work_dir`."""
    alias: Path = ("experiment_dir",)
    if "experiment_dir" not in document.data:
        return
    value = document.data.pop("experiment_dir")
    if "work_dir" in document.data:
        message = "alias of work_dir, which is also set. Remove one of the two keys."
        document.add_problem(alias, message, at_key=True)
        return
    document.data["work_dir"] = value
    for locations in (document.key_locations, document.value_locations):
        if alias in locations:
            locations["work_dir",] = locations[alias]
    if alias in document.invalid_paths:
        document.mark_invalid(("work_dir",))


SHORT_FORMS = {"loss": "type", "load_from": "path"}
"""Keys of a run file whose value may be a name or a path, with the key of the mapping that it abbreviates."""


def expand_short_form(document: Document, key: str) -> None:
    """Replace a name, such as `loss: mse_loss`, by the mapping that it abbreviates: `loss: {type: mse_loss}`."""
    value = document.data.get(key)
    if key in SHORT_FORMS and isinstance(value, str):
        document.data[key] = {SHORT_FORMS[key]: value}
        if (key,) in document.value_locations:
            document.value_locations[key, SHORT_FORMS[key]] = document.value_locations[key,]


class HookList(dict[int | str, Any]):
    """List of hooks in the form of a mapping: settings, or a name, by index; settings of hooks of a layer by name."""


def normalize_hooks(document: Document) -> None:
    """Convert the hooks to one form: a mapping of names, or of the indices of a list, to settings."""
    hooks = document.data.get("hooks")
    if hooks is None or isinstance(hooks, list):
        document.data["hooks"] = HookList(enumerate(hooks or ()))


def expand_names(hooks: dict[Any, Any]) -> list[int]:
    """Replace the items of a list of hooks that are types by settings with the type, and return their keys."""
    keys = [key for key, entry in hooks.items() if isinstance(key, int) and isinstance(entry, str)]
    hooks.update({key: {"type": hooks[key]} for key in keys})
    return keys


def hook_entries(document: Document) -> Entries | None:
    """Return the settings and paths of the hooks, or None if `hooks` is neither a list nor a mapping."""
    warn_of_unknown_blocks()
    normalize_hooks(document)
    hooks = document.data["hooks"]
    if not isinstance(hooks, Mapping):
        return None
    if isinstance(hooks.get("type"), str):
        message = "should be a list, such as [{type: ...}], got the settings of a single hook."
        document.add_problem(("hooks",), message, at_key=True)
        return []
    entries = [(_expand_entry(key, settings), ("hooks", key)) for key, settings in hooks.items()]
    return [(entry, path) for entry, path in entries if not _is_blocked(document, entry, path)]


def _expand_entry(key: str | int, settings: Any) -> Any:
    """Return the settings of a hook. A name is also the default type, and null disables the hook of this type."""
    if isinstance(key, int):
        return {"type": settings} if isinstance(settings, str) else settings
    if settings is None:
        return {"type": key, "enabled": False}
    return add_instance_name(key, settings) if isinstance(settings, Mapping) else settings


def _is_blocked(document: Document, entry: Any, path: Path) -> bool:
    """Return whether `HOOKBUS_BLOCK` blocks every installed hook of a type, and log a warning if it does."""
    type_name = entry.get("type") if isinstance(entry, Mapping) else None
    # The metadata of the installed packages is read only if a name is blocked.
    if not isinstance(type_name, str) or not blocked_names():
        return False
    matching = [plugin for plugin in list_entries() if plugin.matches(type_name)]
    if not matching or not all(plugin.blocked for plugin in matching):
        return False
    message = f"{type_name!r} is skipped because of {BLOCK_VARIABLE}={os.environ[BLOCK_VARIABLE]}."
    warnings.warn(document.format_problem(path, message), HookWarning, stacklevel=2)
    return True


def format_errors(
    model: type[BaseModel],
    document: Document,
    data: Mapping[str, Any],
    entries: Entries | None,
    error: ValidationError,
) -> list[str]:
    """Return one message with a location per validation error."""
    errors = validation_messages(error, model, data, lambda path: document.get_position(_to_file_path(path, entries)))
    located = {_to_file_path(path, entries): to_yaml_terms(message) for path, message in errors.items()}
    settings = _settings_by_hook(entries or []) if any(map(_may_be_setting, located.values())) else {}
    located = {path: _explain(path, message, settings) for path, message in located.items()}
    return [
        document.format_problem(path, message, at_key=message.startswith("unknown key"))
        for path, message in located.items()
        if path not in document.invalid_paths
    ]


def _settings_by_hook(entries: Entries) -> dict[str, Collection[str]]:
    """Return the settings of the hooks that the file names. These hooks are imported in any case."""
    types = [entry.get("type") for entry, _ in entries if isinstance(entry, Mapping)]
    names = {type_ for type_ in types if isinstance(type_, str)}
    return {name: getattr(getattr(find_hook_class(name), "Config", None), "model_fields", ()) for name in names}


def _may_be_setting(message: str) -> bool:
    """Return whether a message reports an unknown key that is not explained, or that is a setting of some hooks."""
    is_unexplained = message == "unknown key." or message.startswith("unknown key. Available:")
    return is_unexplained or (
        message.startswith("unknown key. `") and " hook" in message and "every hook" not in message
    )


def _explain(path: Path, message: str, settings: Mapping[str, Collection[str]]) -> str:
    """Return a message with the place in which the key at its path belongs, if that is known."""
    key = str(path[-1]) if path else ""
    hooks = [name for name, accepted in settings.items() if key in accepted] if _may_be_setting(message) else []
    if len(hooks) == 1:
        return f"unknown key. `{key}` is a setting of the hook `{hooks[0]}`: write it in hooks."
    if path[:1] != ("hooks",) or len(path) != 2 or not message.startswith("should be a mapping"):
        return message
    hint = explain_unknown_key(key, ())
    return message if hint.endswith("is a hook: write it in hooks.") else message + hint


def _to_file_path(path: Path, entries: Entries | None) -> Path:
    """Convert a path in the list of hooks to a path in the file, in which the hooks may be a mapping."""
    if not entries or path[0] != "hooks" or len(path) == 1:
        return path
    return (*entries[int(path[1])][1], *path[2:])


def to_yaml_terms(message: str) -> str:
    """Replace the terms of pydantic by the terms of YAML."""
    for term, yaml_term in YAML_TERMS.items():
        message = message.replace(term, yaml_term)
    return message


def sort_by_location(document: Document, problems: Iterable[str]) -> list[str]:
    """Sort messages by location and drop duplicates. Messages about the command line come last."""

    # The messages already contain their location, so it is parsed from there.
    def get_location(problem: str) -> tuple[bool, int, int]:
        line, column, *_ = [*problem.removeprefix(f"{document.label}:").split(":", 2), "", ""]
        has_location = line.isdigit() and column.isdigit()
        return (False, int(line), int(column)) if has_location else (True, 0, 0)

    return sorted(dict.fromkeys(problems), key=get_location)


def find_name_problem(path: str) -> str:
    """Return the problem of a path that is too long for a file system, or ""."""
    # Encoded as by the system; characters that cannot be encoded are reported elsewhere.
    longest = max((len(name.encode(errors="replace")) for name in path.split(os.sep)), default=0)
    if longest > MAX_NAME_BYTES:
        return f"a name of {longest:,} bytes, but a file system allows {MAX_NAME_BYTES}. Use a shorter name."
    length = len(os.path.join(os.getcwd(), path).encode(errors="replace"))
    return f"a path of {length:,} bytes, but at most {MAX_PATH_BYTES:,} are allowed." if length > MAX_PATH_BYTES else ""


def find_settings_problems(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each path in the settings of a hook that is too long."""
    for key, value in settings.items():
        is_path = key in PATH_KEYS or key.endswith(PATH_SUFFIXES)
        if is_path and isinstance(value, str) and "://" not in value and (problem := find_name_problem(value)):
            yield key, problem
