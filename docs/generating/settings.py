"""Keys of run files and hooks, from their pydantic models."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.generating.tables import table
from hookbus._config.models import DatasetConfig, LoaderConfig, LoadFrom, RunConfig, SchedulerConfig, TrainingConfig
from hookbus.hook import HookConfig

__all__ = ["format_default", "hook_keys", "keys", "run_file"]

SECTIONS: Mapping[str, type[BaseModel]] = {
    "training": TrainingConfig,
    "dataset": DatasetConfig,
    "loader": LoaderConfig,
    "scheduler": SchedulerConfig,
    "load_from": LoadFrom,
}


def run_file() -> str:
    """Return the keys of run files, by section."""
    parts = [keys(RunConfig)]
    for name, model in SECTIONS.items():
        parts.append(f"### {name}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{keys(model)}")
    return "\n\n".join(parts)


def hook_keys() -> str:
    """Return the common keys of all hooks."""
    return keys(HookConfig)


def keys(model: type[BaseModel], without: Iterable[str] = ()) -> str:
    """Return the table of the keys of a model, without the excluded ones."""
    fields = {name: field for name, field in model.model_fields.items() if name not in without}
    return table(("key", "meaning"), ((f"`{name}`", _meaning(field)) for name, field in fields.items()))


def _meaning(field: FieldInfo) -> str:
    """Return description, type and default of a key."""
    notes = [note for note in (_format_type(field), _default(field)) if note]
    return f"{field.description}<br><small>{', '.join(notes)}</small>"


def _format_type(field: FieldInfo) -> str:
    """Return the type of a value in YAML terms."""
    return " or ".join(dict.fromkeys(_words(field.annotation)))


def _words(annotation: Any) -> list[str]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return [word for argument in arguments for word in _words(argument) if argument is not types.NoneType]
    if origin is typing.Literal:
        return [f"`{value}`" for value in arguments]
    if origin is typing.Annotated:
        return _words(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["section"]
    return [WORDS.get(origin or annotation, "string")]


WORDS = {
    Any: "any",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "list",
    tuple: "list",
    dict: "mapping",
}


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return ""
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        values = field.default.model_dump(exclude_unset=True)
        return f"default `{{{', '.join(f'{key}: {value}' for key, value in values.items())}}}`" if values else ""
    return format_default(field.default)


def format_default(default: object) -> str:
    """Return a default value as JSON."""
    return f"default `{json.dumps(default, default=str).strip(chr(34))}`"
