"""The file of an option `--output`: checked before the work of a command, and reported if it cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hookbus.errors import ConfigError, HookbusError, format_path


def check_output(path: Path | None) -> None:
    """Check that the folder of a file exists: a misspelled path creates no folders.

    Args:
        path: Value of the option; None if it is not set.

    Raises:
        ConfigError: If the folder does not exist, or the path is that of a folder.
    """
    if path is None:
        return
    # Not the methods of `Path`, which raise an OSError for a name that is too long.
    if os.path.isdir(path):
        raise ConfigError(f"--output: must be a file, got the folder {format_path(path)}. Pass a file in it.")
    if not os.path.isdir(path.parent):
        raise ConfigError(
            f"--output: {format_path(path.parent)} is no existing folder, got {format_path(path)}. Create the folder, "
            "or pass another file."
        )


@contextmanager
def explain_output_errors(path: Path) -> Iterator[None]:
    """Context manager that converts errors of the file system while a file is written.

    Raises:
        HookbusError: If the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise HookbusError(f"{format_path(path)} cannot be written: {reason}. Pass another file to --output.") from None
