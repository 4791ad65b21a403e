"""Import strings (`my_module:name`), with which run files refer to code that no package publishes."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from typing import Any

from hookbus._utils.values import format_value, shorten
from hookbus.errors import ConfigError, format_error, suggest_names

MAX_ERROR_LENGTH = 1000
"""Maximum number of characters of the description of an error."""

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(__file__))
"""Directory of the package hookbus, whose errors are described without a location."""


def import_string(path: str) -> Any:
    """Import the object that an import string refers to. The current directory is searched as well.

    Args:
        path: `package.module:name`, or `package.module.name`.

    Returns:
        The imported module, class, function or attribute.

    Raises:
        ImportError: If the module or the name does not exist, or if the module cannot be imported.
    """
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if "" not in sys.path:  # `sys.path[0]` of a console script is its own directory, not the current one
        sys.path.insert(0, "")
    try:
        target: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a script may call sys.exit at import time
        raise ImportError(f"{format_value(path)} cannot be imported: {describe_error(error)}.") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise ImportError(
                f"{format_value(path)} cannot be imported: {module} has no attribute {format_value(name)}."
                f"{suggest_if_close(part, dir(target))}"
            )
        target = getattr(target, part)
    return target


def resolve_import(value: object) -> Any:
    """Resolve an import string; return any other value unchanged.

    Validator of settings that accept either an object or its import string.

    Args:
        value: An import string in the form that `import_string` accepts, or the object itself.

    Returns:
        The imported object, or `value` if it is not a string.

    Raises:
        ValueError: If the import string cannot be imported. pydantic converts the error to a validation error.
    """
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except ImportError as error:
        raise ValueError(str(error)) from None


def describe_error(error: BaseException) -> str:
    """Return an error on one line, with the file and line that raised it unless that is an installed package."""
    text = shorten(format_error(error), MAX_ERROR_LENGTH).rstrip(": .!")
    frames = traceback.extract_tb(error.__traceback__)
    # The messages of these two errors already name the module or the line.
    if isinstance(error, (ModuleNotFoundError, SyntaxError)) or not frames or _is_installed(frames[-1].filename):
        return text
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})"


def suggest_if_close(name: str, known: Iterable[str]) -> str:
    """Return the hint of `suggest_names` if there is a close match, else "". Intended for long lists of names."""
    hint = suggest_names(name, known)
    return hint if hint.startswith(" Did you mean") else ""


def _is_installed(filename: str) -> bool:
    if filename.startswith(("<frozen", PACKAGE_DIRECTORY)) or "site-packages" in filename:
        return True
    return any(filename.startswith(path) for path in sysconfig.get_paths().values())


def require_library(hook: str, library: str, install: str) -> None:
    """Raise if a module that a hook requires cannot be imported.

    Raises:
        ConfigError: If the module cannot be imported.
    """
    try:
        importlib.import_module(library)
    except Exception as error:
        message = f"{hook}: the required module {library} cannot be imported: {describe_error(error)}."
        raise ConfigError([f"{message} Run: pip install {install}"]) from error
