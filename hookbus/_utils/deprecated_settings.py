"""Warnings about deprecated settings: fields with `deprecated` that are set explicitly."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from pydantic import BaseModel

from hookbus._utils.deprecations import describe_notice
from hookbus.errors import HookDeprecationWarning

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
    """Report the deprecated settings of a hook that was built from them.

    Args:
        hook: The hook.
        config: Its validated settings.
        names: Settings to report. Default: all.
    """
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


def iter_deprecated_settings(model: BaseModel, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the path and the message of each deprecated field that is set, including those of nested models."""
    for name, field in type(model).model_fields.items():
        if name not in model.model_fields_set:
            continue
        key = field.validation_alias if isinstance(field.validation_alias, str) else name
        if field.deprecated:
            yield (*path, key), describe_notice(field.deprecated)
        # Not by `getattr`, for which pydantic issues a warning of its own.
        yield from _iter_nested(vars(model)[name], (*path, key))


def _iter_nested(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, BaseModel):
        yield from iter_deprecated_settings(value, path)
    elif isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _iter_nested(item, (*path, key))
