"""How a run file is read, and how its mistakes are worded: each in one sentence with its place."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from pydantic import BaseModel, ValidationError

from hookbus._validation_errors import mistakes_in
from hookbus.discovery import BLOCK_VARIABLE, is_blocked, warn_of_unknown_blocks
from hookbus.errors import ConfigError, HookWarning
from hookbus.runfile import yaml as _yaml
from hookbus.runfile.builder import named_settings
from hookbus.runfile.yaml import Document, Path, unwritable

__all__ = ["Entries", "document_of", "hook_entries", "in_order", "in_yaml_words", "sentences", "settle_spelling"]

Entries = list[tuple[Any, Path]]
"""The settings of each hook, and where they stand."""

IN_YAML = {
    "an object": "a mapping",
    "a valid dictionary": "a mapping",
    "a valid array": "a list",
    "but it is None.": "but it is null.",
    "but it is True.": "but it is true.",
    "but it is False.": "but it is false.",
}
"""What pydantic says, and what it is called in a run file."""


def document_of(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a file, or copy a mapping.

    Raises:
        ConfigError: the file cannot be read, or the mapping holds what no file could hold.
    """
    if isinstance(source, Mapping):
        return Document("config", data=_plain(source))
    path = pathlib.Path(source)
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{path}: the run file cannot be read: {error.strerror}."]) from None
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigError(
            [f"{path}:{line}:{column}: this is not UTF-8 text: {error.reason}. Save it as UTF-8."]
        ) from None
    return _yaml.read(text.replace("\r\n", "\n"), str(path))


def _plain(value: Any, path: Path = ()) -> Any:
    """A copy of nested plain values."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each, (*path, str(key))) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, (*path, i)) for i, each in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str) and (odd := unwritable(value)):
        raise ConfigError([Document("config").problem(path, odd)])
    if isinstance(value, (str, int, float, NoneType)):
        return value
    why = f"{value!r} is no plain value, so it cannot stand in a configuration. Give objects to the Trainer itself."
    raise ConfigError([Document("config").problem(path, why)])


def settle_spelling(document: Document) -> None:
    """`experiment_dir` is another spelling of `work_dir`."""
    other: Path = ("experiment_dir",)
    if "experiment_dir" not in document.data:
        return
    value = document.data.pop("experiment_dir")
    if "work_dir" in document.data:
        same = "this is another spelling of work_dir, which is there as well: keep one of them."
        document.problems.append(document.problem(other, same, at_key=True))
        return
    document.data["work_dir"] = value
    for places in (document.keys, document.values):
        if other in places:
            places["work_dir",] = places[other]
    if other in document.refused:
        document.refused.add(("work_dir",))


def hook_entries(document: Document) -> Entries | None:
    """The hooks as a list of settings, with their places; None where they are neither a list nor a mapping."""
    warn_of_unknown_blocks()
    hooks = document.data.get("hooks")
    if isinstance(hooks, Mapping):
        entries = [(_named_entry(name, each), ("hooks", name)) for name, each in hooks.items()]
    elif isinstance(hooks, list):
        entries = [({"type": each} if isinstance(each, str) else each, ("hooks", i)) for i, each in enumerate(hooks)]
    else:
        return [] if hooks is None else None
    return [(entry, path) for entry, path in entries if not _left_out(document, entry, path)]


def _named_entry(name: str, settings: Any) -> Any:
    """One hook of a mapping: the key is its name, and its type where none is given; null switches it off."""
    if settings is None:
        return {"type": name, "enabled": False}
    return named_settings(name, settings) if isinstance(settings, Mapping) else settings


def _left_out(document: Document, entry: Any, path: Path) -> bool:
    """Whether HOOKBUS_BLOCK leaves a hook out, which is said."""
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    if not isinstance(kind, str) or not is_blocked(kind):
        return False
    note = f"{kind!r} is left out, as {BLOCK_VARIABLE}={os.environ[BLOCK_VARIABLE]} says."
    warnings.warn(document.problem(path, note), HookWarning, stacklevel=2)
    return True


def sentences(
    model: type[BaseModel],
    document: Document,
    data: Mapping[str, Any],
    entries: Entries | None,
    error: ValidationError,
) -> list[str]:
    """A sentence for each mistake, with its place.

    Args:
        model: what the data were to be.
        document: where they stand.
        data: what was validated.
        entries: the hooks among them.
        error: what pydantic found.
    """
    furthest = mistakes_in(error, model, data)
    written = {_as_written(path, entries): in_yaml_words(said) for path, said in furthest.items()}
    return [
        document.problem(path, said, at_key=said.startswith("unknown key"))
        for path, said in written.items()
        if not document.is_refused(path)
    ]


def _as_written(path: Path, entries: Entries | None) -> Path:
    """A place in the list of hooks as a place in the file, where they may be a mapping."""
    if not entries or path[0] != "hooks" or len(path) == 1:
        return path
    return (*entries[int(path[1])][1], *path[2:])


def in_yaml_words(message: str) -> str:
    """A sentence of pydantic's in the words of the file."""
    for said, meant in IN_YAML.items():
        message = message.replace(said, meant)
    return message


def in_order(document: Document, problems: Iterable[str]) -> list[str]:
    """In the order of the file, each once; what comes from the command line last."""

    def place(problem: str) -> tuple[bool, int, int]:
        line, column, *_ = [*problem.removeprefix(f"{document.name}:").split(":", 2), "", ""]
        is_placed = line.isdigit() and column.isdigit()
        return (False, int(line), int(column)) if is_placed else (True, 0, 0)

    return sorted(dict.fromkeys(problems), key=place)
