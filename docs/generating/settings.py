"""The keys of a run file and of hooks, out of their pydantic models."""

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
from hookbus.config import RunConfig
from hookbus.hook import HookConfig
from hookbus.runfile.sections import DatasetConfig, LoaderConfig, LoadFrom, SchedulerConfig, TrainingConfig

__all__ = ["hook_keys", "keys", "run_file", "shown"]

SECTIONS: Mapping[str, type[BaseModel]] = {
    "training": TrainingConfig,
    "dataset": DatasetConfig,
    "loader": LoaderConfig,
    "scheduler": SchedulerConfig,
    "load_from": LoadFrom,
}


def run_file() -> str:
    """The keys of a run file, section by section."""
    parts = [keys(RunConfig)]
    for name, model in SECTIONS.items():
        parts.append(f"### {name}\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n{keys(model)}")
    return "\n\n".join(parts)


def hook_keys() -> str:
    """The keys that every hook understands."""
    return keys(HookConfig)


def keys(model: type[BaseModel], without: Iterable[str] = ()) -> str:
    """The keys of a section, some left out."""
    fields = {name: field for name, field in model.model_fields.items() if name not in without}
    return table(("key", "meaning"), ((f"`{name}`", _meaning(field)) for name, field in fields.items()))


def _meaning(field: FieldInfo) -> str:
    """What a key means, which values it takes, and which it has by default."""
    notes = [note for note in (_kind(field), _default(field)) if note]
    return f"{field.description}<br><small>{', '.join(notes)}</small>"


def _kind(field: FieldInfo) -> str:
    """The type of a value, in the words of a run file."""
    return " or ".join(dict.fromkeys(_words(field.annotation)))


def _words(annotation: Any) -> list[str]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return [word for each in arguments for word in _words(each) if each is not types.NoneType]
    if origin is typing.Literal:
        return [f"`{each}`" for each in arguments]
    if origin is typing.Annotated:
        return _words(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["section"]
    return [WORDS.get(origin or annotation, "text")]


WORDS = {
    Any: "anything",
    bool: "true or false",
    int: "whole number",
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
        given = field.default.model_dump(exclude_unset=True)
        return f"default `{{{', '.join(f'{key}: {value}' for key, value in given.items())}}}`" if given else ""
    return shown(field.default)


def shown(default: object) -> str:
    """A default as JSON has it."""
    return f"default `{json.dumps(default, default=str).strip(chr(34))}`"
