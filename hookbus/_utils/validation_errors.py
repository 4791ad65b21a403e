"""Conversion of pydantic validation errors to messages with close matches of unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hookbus.errors import suggest_names

__all__ = ["ALL_SETTINGS", "format_validation_error", "missing_key_message", "validation_messages"]


ALL_SETTINGS = "settings"
"""Location of an error that concerns a combination of settings instead of one setting."""


def format_validation_error(error: ValidationError, model: type[BaseModel], data: Any) -> list[tuple[str, str]]:
    """Return pydantic's errors as (dotted location, message) pairs, see `validation_messages`.

    Args:
        error: The error that pydantic raised.
        model: The model that the data were validated against.
        data: The validated data.

    Returns:
        One pair per location. The location of an error that concerns multiple settings is `ALL_SETTINGS`.
    """
    return [
        (".".join(map(str, path)) or ALL_SETTINGS, message)
        for path, message in validation_messages(error, model, data).items()
    ]


def validation_messages(error: ValidationError, model: type[BaseModel], data: Any) -> dict[tuple[Any, ...], str]:
    """Return one message per location at which pydantic reported an error.

    Args:
        error: The error that pydantic raised.
        model: The model that the data were validated against.
        data: The validated data.

    Returns:
        Messages by path in `data`.
    """
    messages: dict[tuple[Any, ...], list[str]] = {}
    for details in error.errors():
        path = _to_data_path(data, details["loc"], missing=details["type"] == "missing")
        messages.setdefault(path, []).append(_format_message(details, model))
    # For a union, pydantic reports the errors of every branch. The branch with the deepest location is most likely
    # the one that the user meant.
    return {
        path: _merge_union_messages(texts)
        for path, texts in messages.items()
        if not any(_is_below(other, path) for other in messages)
    }


def _is_below(path: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return path != other and path[: len(other)] == other


def _to_data_path(data: Any, loc: tuple[str | int, ...], *, missing: bool) -> tuple[Any, ...]:
    """Convert a location of pydantic to a path in the data by dropping the names of union branches."""
    path: tuple[Any, ...] = ()
    for key in loc:
        keys: Any = data if isinstance(data, Mapping) else range(len(data)) if isinstance(data, list) else ()
        match = next((item for item in keys if str(item) == str(key)), None)  # keys of JSON objects are strings
        if match is not None:
            path, data = (*path, match), data[match]
    return (*path, loc[-1]) if missing else path


def _merge_union_messages(messages: list[str]) -> str:
    """Merge the messages of the branches of a union: "should be A, got X." and "should be B, got X."."""
    parts = [message.removeprefix("should be ").partition(", got ") for message in dict.fromkeys(messages)]
    if len(parts) == 1 or not all(message.startswith("should be ") for message in messages):
        return messages[0]
    return f"should be {' or '.join(expectation for expectation, _, _ in parts)}, got {parts[0][2]}"


def _format_message(error: Any, model: type[BaseModel]) -> str:
    loc, error_type, value = error["loc"], error["type"], error.get("input")
    if error_type == "extra_forbidden":
        known = _get_fields(model, loc[:-1])
        homes = _sections_with_key(str(loc[-1]), model)
        belongs = f" It is a key of {' or of '.join(homes)}." if homes else suggest_names(str(loc[-1]), known)
        return f"unknown key.{belongs}"
    if error_type == "missing":
        known = _get_fields(model, loc[:-1])
        return missing_key_message(
            str(loc[-1]), [key for key in value if key not in known] if isinstance(value, dict) else []
        )
    if error_type == "import_error":
        return (
            f"should be an import string package.module.name, but {value!r} cannot be imported: "
            f"{error['ctx']['error']}."
        )
    # pydantic starts messages with the type of the input. The location already names the setting.
    message = re.sub(r"^(Input|String|List) ", "", str(error["msg"]).removeprefix("Value error, "))
    return message if error_type == "value_error" or message.endswith(".") else f"{message}, got {value!r}."


def missing_key_message(key: str, others: Iterable[Any]) -> str:
    """Return the message for a missing required key, with a hint if an unknown key is a close match.

    Args:
        key: The required key.
        others: The unknown keys of the same section.
    """
    near = difflib.get_close_matches(key, map(str, others), n=1)
    return "required, but missing." + (f" Is {near[0]!r} a misspelling of it?" if near else "")


def _get_fields(model: Any, path: tuple[Any, ...]) -> list[str]:
    """Return the keys that a model accepts at a path."""
    models = [model]
    for key in path:
        annotations = [section.model_fields[key].annotation for section in models if key in section.model_fields]
        models = [nested for annotation in annotations for nested in _find_models(annotation)] or models
    return [name for section in models for name in section.model_fields]


def _sections_with_key(key: str, model: type[BaseModel]) -> list[str]:
    """Return the sections that accept a key: the top level and the names of nested sections."""
    sections = {name: _find_models(field.annotation) for name, field in model.model_fields.items()}
    matches = [name for name, inner in sections.items() if any(key in section.model_fields for section in inner)]
    return (["the top level"] if key in model.model_fields else []) + matches


def _find_models(annotation: Any) -> list[type[BaseModel]]:
    # Optional and union annotations contain their models as type arguments.
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _find_models(argument)]
