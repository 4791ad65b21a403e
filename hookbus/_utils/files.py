"""Files whose content is not trusted: regular files of bounded size, JSON of bounded depth; and paths in settings."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from hookbus._utils.system import open_descriptor

MAX_DEPTH = 64
"""Maximum number of nested JSON arrays and objects. Files of hookbus have fewer than ten levels."""


def get_reason(error: OSError | ValueError) -> str:
    """Return the reason of an error of the system, or of a ValueError about an invalid character in a path."""
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def open_regular_file(path: Path | str, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading, without blocking on a FIFO or device in its place.

    Args:
        path: Path of the file.
        follow: Whether the path may be a symbolic link. Default: True.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
    """
    try:
        descriptor = open_descriptor(path, os.O_RDONLY, follow=follow)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, "not a regular file", str(path)) from None
        if error.errno == errno.ELOOP and not follow and os.path.islink(path):
            raise OSError(errno.ELOOP, "is a symbolic link", str(path)) from None
        raise
    except ValueError as error:  # the path contains a NUL byte, or a character that cannot be encoded
        raise OSError(errno.EINVAL, str(error), repr(path)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            reason = "is a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, reason, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_for_writing(path: str, flags: int) -> int:
    """Open or create a regular file for `open(..., opener=)`, without following a link or blocking on a FIFO.

    Args:
        path: Path of the file.
        flags: Flags of the mode, to which those for a safe access are added.

    Returns:
        The file descriptor.

    Raises:
        OSError: If the file cannot be opened, or is not a regular file.
    """
    descriptor = open_descriptor(path, flags | os.O_CREAT)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def read_regular_file(path: Path | str, limit: int) -> bytes:
    """Return the content of a regular file. Symbolic links, directories, FIFOs and devices are refused.

    Args:
        path: Path of the file.
        limit: Maximum size in bytes.

    Raises:
        OSError: If the file cannot be read, is not a regular file, or is larger than the limit.
    """
    with open_regular_file(path, follow=False) as file:
        # The size is checked first so that a huge sparse file is not read at all. A file may grow in the meantime.
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""
    if size > limit or len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


def parse_json(data: bytes | str) -> Any:
    """Parse JSON strictly: UTF-8 without NaN, infinity, duplicate keys, lone surrogates or deep nesting.

    Args:
        data: JSON document; bytes are decoded as UTF-8.

    Raises:
        ValueError: If the document is invalid, or nested deeper than `MAX_DEPTH`. The message begins with
            "invalid JSON".
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = _DECODER.decode(text)
        # A parsed string contains a lone surrogate only if the document has an escape sequence of one.
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"invalid JSON: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # includes UnicodeError
        raise ValueError(f"invalid JSON: {error}") from None
    # Most documents have fewer brackets than the limit, so their depth need not be determined.
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise ValueError(f"invalid JSON: nested deeper than {MAX_DEPTH} levels")
    return value


def _is_deeper_than(value: Any, depth: int) -> bool:
    """Return whether lists and dicts are nested deeper than a limit, without recursion."""
    level = [value]
    for _ in range(depth + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return False
        level = [item for parent in containers for item in (parent.values() if isinstance(parent, dict) else parent)]
    return True


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)[:80]!r}")
    return built


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is not a finite number")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_object, parse_float=_parse_finite, parse_constant=_parse_finite, strict=True
)


def find_path_problem(setting: str, value: str | os.PathLike[str]) -> str:
    """Return why an output path cannot be used in a run without a work directory; "" if it can.

    Args:
        setting: Name of the setting.
        value: Value of the setting.
    """
    if Path(os.path.expanduser(value)).is_absolute():
        return ""
    return (
        f"{setting}: expected an absolute path in a run without a work directory, got {value}. Set `work_dir`, or set "
        f"`{setting}` to an absolute path."
    )
