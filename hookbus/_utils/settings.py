"""Models of settings: their deprecated fields, and validation errors as messages with close matches."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hookbus._utils.deprecations import describe_notice
from hookbus._utils.known_keys import TOP_LEVEL, explain_unknown_key
from hookbus._utils.redaction import hide_declared, hide_in_message, hide_value
from hookbus._utils.values import format_value, shorten
from hookbus.errors import MAX_ERROR_LINES, MAX_NAME_LENGTH, HookDeprecationWarning

Path = tuple[Any, ...]
Report = Callable[[Path, str], None]

_report: ContextVar[Report | None] = ContextVar("_report", default=None)


class SettingsModel(BaseModel):
    """Base model of settings. A deprecated field is read without the warning that pydantic issues at each access."""

    # A hook may read its settings at every iteration; users of the setting are warned once, when it is validated.
    @classmethod
    def __pydantic_on_complete__(cls) -> None:
        super().__pydantic_on_complete__()
        for name, field in cls.model_fields.items():
            if field.deprecated and name in vars(cls):
                delattr(cls, name)


@contextmanager
def report_settings(report: Report) -> Iterator[None]:
    """Context manager in which deprecated settings of hooks are passed to a function: the path, and the message."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def warn_of_settings(hook: object, config: BaseModel, names: Collection[str] | None = None) -> None:
    """Report the deprecated settings of a hook that was built from them."""
    report = _report.get()
    for path, text in iter_deprecated_settings(config):
        if names is not None and path[0] not in names:
            continue
        if report is not None:
            report(path, text)
        else:
            warn_caller(f"{type(hook).__name__}: {'.'.join(map(str, path))}: {text}", hook)


def warn_caller(message: str, hook: object = None) -> None:
    """Issue a HookDeprecationWarning at the line outside of hookbus, and of the constructor of a hook, that called."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame, hook):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, HookDeprecationWarning, stacklevel=level)


def _is_internal(frame: FrameType, hook: object) -> bool:
    if str(frame.f_globals.get("__name__")).partition(".")[0] == "hookbus":
        return True
    if hook is None or frame.f_code.co_name != "__init__":
        return False
    return any(frame.f_locals.get(name) is hook for name in frame.f_code.co_varnames[:1])  # `self`, if it has any


def iter_deprecated_settings(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the path and the message of each deprecated field that is set in a model, or in nested models."""
    if isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from iter_deprecated_settings(item, (*path, key))
    if not isinstance(value, BaseModel):
        return
    for name, field in type(value).model_fields.items():
        if name not in value.model_fields_set:
            continue
        key = field.validation_alias if isinstance(field.validation_alias, str) else name
        if field.deprecated:
            yield (*path, key), describe_notice(field.deprecated)
        # Not by `getattr`, for which pydantic issues a warning of its own.
        yield from iter_deprecated_settings(vars(value)[name], (*path, key))


ALL_SETTINGS = "settings"
"""Location of an error that concerns a combination of settings instead of one setting."""

MAX_MESSAGE_LENGTH = 600
"""Maximum number of characters of a message of pydantic or of a validator, which may contain the invalid value."""

BRIEF_MESSAGES = {"extra_forbidden": "unknown key.", "missing": "required, but missing."}


def format_validation_error(error: ValidationError, model: type[BaseModel], data: Any) -> list[tuple[str, str]]:
    """Return pydantic's errors as (dotted location, message) pairs, see `validation_messages`.

    Returns:
        One pair per location. The location of an error that concerns multiple settings is `ALL_SETTINGS`.
    """
    return [
        (".".join(map(str, path)) or ALL_SETTINGS, message)
        for path, message in validation_messages(error, model, data).items()
    ]


def validation_messages(
    error: ValidationError,
    model: type[BaseModel],
    data: Any,
    position: Callable[[Path], Any] | None = None,
) -> dict[Path, str]:
    """Return one message per location at which pydantic reported an error.

    Args:
        error: The error that pydantic raised.
        model: The model that the data were validated against.
        data: The validated data.
        position: Sort key of paths. Default: the order of pydantic. Only the first messages, which are those that a
            `ConfigError` lists, contain hints, because the search for close matches takes time.

    Returns:
        Messages by path in `data`, in the order of `position`.
    """
    errors: dict[Path, list[Any]] = {}
    find_path = _PathFinder(data).find
    for details in error.errors(include_url=False):
        path = find_path(details["loc"], missing=details["type"] == "missing")
        errors.setdefault(path, []).append(details)
    # For a union, pydantic reports the errors of every branch. The branch with the deepest location is most likely
    # the one that the user meant.
    parents = {path[:end] for path in errors for end in range(len(path))}
    paths = [path for path in errors if path not in parents]
    if position is not None:
        paths.sort(key=position)
    declared = hide_declared(data, model)
    return {
        path: _merge_union_messages(
            [
                _format_message(details, model, path, declared) if index < MAX_ERROR_LINES else _format_briefly(details)
                for details in errors[path]
            ]
        )
        for index, path in enumerate(paths)
    }


class _PathFinder:
    """Convert locations of pydantic to paths in the data by dropping the names of union branches."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._keys: dict[int, dict[str, Any]] = {}

    def find(self, loc: tuple[str | int, ...], *, missing: bool) -> Path:
        path: Path = ()
        data = self._data
        for key in loc:
            keys = self._get_keys(data)
            if str(key) in keys:
                path, data = (*path, keys[str(key)]), data[keys[str(key)]]
        return (*path, loc[-1]) if missing else path

    def _get_keys(self, data: Any) -> dict[str, Any]:
        """Return the keys of a container by their text, because keys of JSON objects are strings."""
        if not isinstance(data, (Mapping, list)):
            return {}
        if id(data) not in self._keys:
            self._keys[id(data)] = {str(key): key for key in (data if isinstance(data, Mapping) else range(len(data)))}
        return self._keys[id(data)]


def _merge_union_messages(messages: list[str]) -> str:
    """Merge the messages of the branches of a union: "should be A, got X." and "should be B, got X."."""
    parts = [message.removeprefix("should be ").partition(", got ") for message in dict.fromkeys(messages)]
    if len(parts) == 1 or not all(message.startswith("should be ") for message in messages):
        return messages[0]
    return f"should be {' or '.join(expectation for expectation, _, _ in parts)}, got {parts[0][2]}"


def _format_briefly(error: Any) -> str:
    """Return a message without the value and without hints, for an error that is only counted."""
    if error["type"] in BRIEF_MESSAGES:
        return BRIEF_MESSAGES[error["type"]]
    return "invalid value." if error["type"] == "value_error" else f"{_get_expectation(error)}."


def _get_expectation(error: Any) -> str:
    # pydantic starts messages with the type of the input. The location already names the setting.
    return re.sub(r"^(Input|String|List) ", "", str(error["msg"]).removeprefix("Value error, "))


def _format_message(error: Any, model: type[BaseModel], path: Path, declared: Any) -> str:
    loc, error_type, value = error["loc"], error["type"], error.get("input")
    if error_type == "extra_forbidden":
        key, known = str(loc[-1]), _get_fields(model, loc[:-1])
        return f"unknown key.{explain_unknown_key(key, known, sections=_sections_with_key(key, model))}"
    if error_type == "missing":
        known = _get_fields(model, loc[:-1])
        return missing_key_message(
            str(loc[-1]), [key for key in value if key not in known] if isinstance(value, dict) else []
        )
    shown = hide_value(value, path, declared)
    if error_type == "needs_python_object":
        return f"should be a Python object{_describe_type(model, loc)}, got {format_value(shown)}."
    if error_type == "import_error":
        return (
            f"should be an import string package.module.name, but {format_value(shown)} cannot be imported: "
            f"{shorten(str(error['ctx']['error']), MAX_MESSAGE_LENGTH)}."
        )
    message = shorten(hide_in_message(_get_expectation(error), value, shown), MAX_MESSAGE_LENGTH)
    return message if error_type == "value_error" or message.endswith(".") else f"{message}, got {format_value(shown)}."


def _describe_type(model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    field = model.model_fields.get(str(loc[0]))
    return "" if field is None or len(loc) > 1 else f" of type {inspect.formatannotation(field.annotation)}"


def missing_key_message(key: str, others: Iterable[Any]) -> str:
    """Return the message for a missing required key, with a hint if an unknown key is a close match."""
    names = (str(other) for other in others)
    near = difflib.get_close_matches(key, [name for name in names if len(name) <= MAX_NAME_LENGTH], n=1)
    return "required, but missing." + (f" Is {near[0]!r} a misspelling of it?" if near else "")


def _get_fields(model: Any, path: tuple[Any, ...]) -> list[str]:
    """Return the keys that a model accepts at a path."""
    models = [model]
    for key in path:
        annotations = [section.model_fields[key].annotation for section in models if key in section.model_fields]
        models = [nested for annotation in annotations for nested in find_models(annotation)] or models
    return [name for section in models for name in section.model_fields]


def _sections_with_key(key: str, model: type[BaseModel]) -> list[str]:
    """Return the sections that accept a key: the top level and the names of nested sections."""
    sections = {name: find_models(field.annotation) for name, field in model.model_fields.items()}
    matches = [name for name, inner in sections.items() if any(key in section.model_fields for section in inner)]
    return ([TOP_LEVEL] if key in model.model_fields else []) + matches


def find_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that an annotation contains."""
    # Optional and union annotations contain their models as type arguments.
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in find_models(argument)]
