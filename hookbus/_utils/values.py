"""Values in messages, on one line, without control characters and of bounded length; values in containers; versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TensorVersion = tuple[int, int | None]
"""Number of changes of a tensor, and the address of its values."""

MAX_VALUE_LENGTH = 80
"""Maximum number of characters of a value in a message."""


def shorten(text: str, limit: int = MAX_VALUE_LENGTH) -> str:
    """Return a text of at most `limit` characters, of which the last is an ellipsis if the text is longer."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def escape_control_characters(text: str, keep: str = "") -> str:
    r"""Return a text in which characters that a terminal may interpret are escaped, such as `\x1b`.

    Args:
        text: The text.
        keep: Characters that are not escaped although they are not printable. Default: none.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep else ascii(character)[1:-1] for character in text
    )


def format_value(value: Any, limit: int = MAX_VALUE_LENGTH) -> str:
    """Return the repr of a value for a message, on one line and shortened.

    Args:
        value: Any value. An invalid `__repr__` is replaced by the type.
        limit: Maximum number of characters, without the quotes of a string.
    """
    if isinstance(value, (str, bytes)):
        # The repr of a part, because that of the whole could be long.
        is_long = len(value) > limit
        text = repr(value[: limit - 1] if is_long else value)
        return f"{text[:-1]}…{text[-1]}" if is_long else text
    try:
        text = repr(value)
    except Exception:  # includes a RecursionError of nested values
        text = f"<{type(value).__name__}>"
    return shorten(escape_control_characters(" ".join(text.split())), limit)


def iter_leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the values in nested mappings, lists and tuples that are no containers themselves, with their paths."""
    if not isinstance(value, (Mapping, list, tuple)):
        yield path, value
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from iter_leaves(item, (*path, key))


def get_tensor_version(tensor: Tensor) -> TensorVersion:
    """Return what changes with the values of a tensor: assignment to `Tensor.data` changes the address only."""
    try:
        return tensor._version, tensor.data_ptr()
    except (RuntimeError, ValueError):  # a tensor without a storage, or a parameter that is not initialized yet
        return tensor._version, None
