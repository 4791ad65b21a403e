"""What pydantic finds wrong, as sentences for people, with names that come near."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hookbus.errors import did_you_mean

__all__ = ["AS_A_WHOLE", "missing", "mistakes_in", "problems_of"]


AS_A_WHOLE = "settings"
"""What all settings together are called in a message, where each holds and they do not go together."""


def problems_of(error: ValidationError, model: type[BaseModel], data: Any) -> list[tuple[str, str]]:
    """Turn pydantic's errors into (dotted place, sentence) pairs with near names, as `mistakes_in` does."""
    return [(".".join(map(str, path)) or AS_A_WHOLE, said) for path, said in mistakes_in(error, model, data).items()]


def mistakes_in(error: ValidationError, model: type[BaseModel], data: Any) -> dict[tuple[Any, ...], str]:
    """A sentence for each place where pydantic found something. Of a union the branch that got furthest counts.

    Args:
        error: what it found.
        model: what the data were to be.
        data: what was validated.
    """
    found: dict[tuple[Any, ...], list[str]] = {}
    for each in error.errors():
        path = _path_in(data, each["loc"], missing=each["type"] == "missing")
        found.setdefault(path, []).append(_sentence(each, model))
    return {path: _united(said) for path, said in found.items() if not any(_is_inside(other, path) for other in found)}


def _is_inside(path: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return path != other and path[: len(other)] == other


def _path_in(data: Any, loc: tuple[str | int, ...], *, missing: bool) -> tuple[Any, ...]:
    """A place of pydantic's as a place in the data; it names the branches of unions as well."""
    path: tuple[Any, ...] = ()
    for key in loc:
        keys: Any = data if isinstance(data, Mapping) else range(len(data)) if isinstance(data, list) else ()
        known = next((each for each in keys if str(each) == str(key)), None)  # JSON has texts as keys
        if known is not None:
            path, data = (*path, known), data[known]
    return (*path, loc[-1]) if missing else path


def _united(messages: list[str]) -> str:
    """`should be A, but it is X.` and `should be B, but it is X.` as one sentence."""
    parts = [message.removeprefix("should be ").partition(", but it is ") for message in dict.fromkeys(messages)]
    if len(parts) == 1 or not all(message.startswith("should be ") for message in messages):
        return messages[0]
    return f"should be {' or '.join(what for what, _, _ in parts)}, but it is {parts[0][2]}"


def _sentence(error: Any, model: type[BaseModel]) -> str:
    loc, kind, value = error["loc"], error["type"], error.get("input")
    if kind == "extra_forbidden":
        known = _fields_at(model, loc[:-1])
        homes = _homes_of(str(loc[-1]), model)
        belongs = f" It is a key of {' or of '.join(homes)}." if homes else did_you_mean(str(loc[-1]), known)
        return f"unknown key.{belongs}"
    if kind == "missing":
        known = _fields_at(model, loc[:-1])
        return missing(str(loc[-1]), [key for key in value if key not in known] if isinstance(value, dict) else [])
    if kind == "import_error":
        return f"should be a path package.module.name, but {value!r} cannot be imported: {error['ctx']['error']}."
    message = re.sub(r"^(Input|String|List) ", "", str(error["msg"]).removeprefix("Value error, "))
    return message if kind == "value_error" or message.endswith(".") else f"{message}, but it is {value!r}."


def missing(key: str, others: Iterable[Any]) -> str:
    """What is said of a key that is not there: perhaps it was misspelt.

    Args:
        key: the key.
        others: the unknown keys that are there.
    """
    near = difflib.get_close_matches(key, map(str, others), n=1)
    return "required, but not given." + (f" Is {near[0]!r} a misspelling of it?" if near else "")


def _fields_at(model: Any, path: tuple[Any, ...]) -> list[str]:
    """The keys that are known at a place below a model."""
    models = [model]
    for key in path:
        annotations = [each.model_fields[key].annotation for each in models if key in each.model_fields]
        models = [found for annotation in annotations for found in _models_in(annotation)] or models
    return [name for each in models for name in each.model_fields]


def _homes_of(key: str, model: type[BaseModel]) -> list[str]:
    """Where a key that is out of place would be known: at the top, or in one of the sections."""
    sections = {name: _models_in(field.annotation) for name, field in model.model_fields.items()}
    found = [name for name, inner in sections.items() if any(key in each.model_fields for each in inner)]
    return (["the top level"] if key in model.model_fields else []) + found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in _models_in(each)]
