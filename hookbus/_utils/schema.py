"""Checks of data that was read from a file: types, ranges and keys, before any of it is used.

A check is a function of a value and its key in the file. It raises an `InvalidDataError` with the key and the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MAX_COUNT = 2**53
"""Largest count, and largest size in bytes: up to it, floats represent every integer."""

MAX_STRING = 4096
MAX_NAME = 255
"""Maximum length of a file name in bytes on common file systems."""

Check = Callable[[Any, str], None]
"""Function of a value and its key that raises an `InvalidDataError` if the value is invalid."""


class InvalidDataError(ValueError):
    """Data of a file that is invalid.

    Args:
        key: Key of the value; "" for the whole content.
        expected: What is valid.
        got: Short description of the invalid value, see `shorten`.
    """

    def __init__(self, key: str, expected: str, got: str) -> None:
        super().__init__(f"{key or 'content'}: expected {expected}, got {got}")


def shorten(value: Any) -> str:
    """Return a short description of a value of any type and size."""
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else value[:77] + "...")
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to convert huge integers to decimal
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, complex)):
        return repr(value)
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + ("" if shape is None else f" of shape {tuple(shape)}")


def join(key: str, name: Any) -> str:
    """Return the key of an entry of a mapping or list."""
    part = name if isinstance(name, str) and name and name.isprintable() and len(name) <= 80 else shorten(name)
    return f"{key}.{part}" if key else part


def any_value(value: Any, key: str) -> None:
    """Accept any value."""


def boolean(value: Any, key: str) -> None:
    """Require True or False."""
    if type(value) is not bool:
        raise InvalidDataError(key, "true or false", shorten(value))


def integer(minimum: int = 0, maximum: int = MAX_COUNT) -> Check:
    """Require an integer in a range. Booleans are invalid."""

    def check(value: Any, key: str) -> None:
        if type(value) is not int or not minimum <= value <= maximum:
            raise InvalidDataError(key, f"an integer from {minimum} to {maximum}", shorten(value))

    return check


def number(minimum: float = -math.inf, *, finite: bool = False) -> Check:
    """Require an integer or float that is large enough. NaN is valid unless `finite` is set. Booleans are invalid."""

    def check(value: Any, key: str) -> None:
        is_number = type(value) is float or (type(value) is int and value.bit_length() < 1024)
        if not is_number or value < minimum or (finite and not math.isfinite(value)):
            bound = "" if minimum == -math.inf else f" >= {minimum:g}"
            raise InvalidDataError(key, f"a {'finite ' if finite else ''}number{bound}", shorten(value))

    return check


def string(pattern: str = "", maximum: int = MAX_STRING) -> Check:
    """Require a string that can be encoded, of bounded length, that matches a pattern completely."""
    compiled = re.compile(pattern) if pattern else None

    def check(value: Any, key: str) -> None:
        if type(value) is not str or len(value) > maximum or not _is_encodable(value):
            raise InvalidDataError(key, f"a string of at most {maximum} characters", shorten(value))
        if compiled is not None and not compiled.fullmatch(value):
            raise InvalidDataError(key, f"a string of the form {pattern}", shorten(value))

    return check


def file_name(value: Any, key: str) -> None:
    """Require the name of a file within its directory: no separator, no NUL, neither "." nor ".."."""
    is_name = type(value) is str and value not in ("", ".", "..") and not set(value) & {"/", "\\", "\0"}
    if not is_name or not _is_encodable(value) or len(value.encode()) > MAX_NAME:
        raise InvalidDataError(key, "a file name without a directory", shorten(value))


def nullable(inner: Check) -> Check:
    """Accept None, and whatever another check accepts."""
    return lambda value, key: None if value is None else inner(value, key)


def either(*checks: Check) -> Check:
    """Accept what one of several checks accepts; the message is that of the last one."""

    def check(value: Any, key: str) -> None:
        for inner in checks[:-1]:
            try:
                return inner(value, key)
            except InvalidDataError:
                continue
        return checks[-1](value, key)

    return check


def list_of(inner: Check, minimum: int = 0, maximum: int = MAX_COUNT) -> Check:
    """Require a list or tuple of a length in a range, whose entries pass a check."""

    def check(value: Any, key: str) -> None:
        if type(value) not in (list, tuple):
            raise InvalidDataError(key, "a list", shorten(value))
        if not minimum <= len(value) <= maximum:
            raise InvalidDataError(key, f"a list of {minimum} to {maximum} entries", f"{len(value)} entries")
        for i, item in enumerate(value):
            inner(item, f"{key}[{i}]")

    return check


def tuple_of(*checks: Check) -> Check:
    """Require a list or tuple whose entries pass one check each."""
    has_length = list_of(any_value, len(checks), len(checks))

    def check(value: Any, key: str) -> None:
        has_length(value, key)
        for i, (item, inner) in enumerate(zip(value, checks, strict=True)):
            inner(item, f"{key}[{i}]")

    return check


def mapping_of(inner: Check, keys: Check | None = None) -> Check:
    """Require a mapping whose values pass a check. Keys are strings unless another check is passed."""
    check_key = keys or string()

    def check(value: Any, key: str) -> None:
        if not isinstance(value, Mapping):
            raise InvalidDataError(key, "a mapping", shorten(value))
        for name, item in value.items():
            check_key(name, f"{key or 'content'}: key")
            inner(item, join(key, name))

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Require a mapping with certain keys. Further keys are accepted: a later version may have written them."""
    has_string_keys, checks = mapping_of(any_value), {**required, **(optional or {})}

    def check(value: Any, key: str) -> None:
        has_string_keys(value, key)
        for name, inner in checks.items():
            if name in value:
                inner(value[name], join(key, name))
            elif name in required:
                raise InvalidDataError(join(key, name), "a value", "no such key")

    return check


def tensor(dimensions: int | None = None, dtype: torch.dtype | None = None, maximum: int | None = None) -> Check:
    """Require a tensor with a number of dimensions, a dtype and a maximum number of elements."""
    from torch import Tensor  # on first use: this module must not import torch

    def check(value: Any, key: str) -> None:
        if not isinstance(value, Tensor):
            raise InvalidDataError(key, "a tensor", shorten(value))
        if (dimensions is not None and value.dim() != dimensions) or (maximum is not None and value.numel() > maximum):
            limits = f"{dimensions} dimensions and at most {maximum} elements"
            raise InvalidDataError(key, f"a tensor of {limits}", shorten(value))
        if dtype is not None and value.dtype != dtype:
            raise InvalidDataError(key, f"a tensor of dtype {dtype}", f"dtype {value.dtype}")

    return check


def _is_encodable(text: str) -> bool:
    """Return whether a string contains no lone surrogate, with which it can be neither written nor printed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
