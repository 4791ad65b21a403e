"""What does `my_module:name` name? The one way in which run files reach code that no package offers."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from typing import Any

from hookbus.errors import ConfigError, did_you_mean, in_one_line

__all__ = ["cause_of", "import_path", "imported", "nearest", "see_library"]


def import_path(path: str) -> Any:
    """Import what a path names. Modules in the current directory are found as well.

    Args:
        path: `package.module:name`, or `package.module.name`.

    Raises:
        ImportError: there is no such module or name, or the module cannot be imported; a complete sentence.
    """
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if "" not in sys.path:  # a console script looks only where it is installed
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise ImportError(f"{path!r} cannot be imported: {cause_of(error)}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ImportError(f"{path!r} cannot be imported: {module} has no {name!r}.{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


def imported(value: object) -> Any:
    """What a path names, and anything else as it is: validates a setting that may be given as itself or by its path.

    Args:
        value: a path as `import_path` takes it, or what is meant.

    Raises:
        ValueError: it cannot be imported; pydantic makes a mistake in the settings of that.
    """
    if not isinstance(value, str):
        return value
    try:
        return import_path(value)
    except ImportError as error:
        raise ValueError(str(error)) from None


def cause_of(error: BaseException) -> str:
    """An error in one line, and where it was raised, unless that is in an installed package."""
    text = in_one_line(error).rstrip(": .!")
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, (ModuleNotFoundError, SyntaxError)) or not frames or _is_installed(frames[-1].filename):
        return text
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})"


def nearest(name: str, known: Iterable[str]) -> str:
    """As `did_you_mean`, but silent where nothing is near: for long lists."""
    hint = did_you_mean(name, known)
    return hint if hint.startswith(" Did you mean") else ""


def _is_installed(filename: str) -> bool:
    if filename.startswith(("<frozen", os.path.dirname(__file__))) or "site-packages" in filename:
        return True
    return any(filename.startswith(path) for path in sysconfig.get_paths().values())


def see_library(hook: str, library: str, install: str) -> None:
    """See that a module that a hook needs can be imported.

    Args:
        hook: the name of its class.
        library: the module.
        install: what has to be installed for it.

    Raises:
        ConfigError: it cannot.
    """
    try:
        importlib.import_module(library)
    except Exception as error:
        raise ConfigError(
            [f"{hook} needs {library}, which cannot be imported: {cause_of(error)}. Run: pip install {install}"]
        ) from error
