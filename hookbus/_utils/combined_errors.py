"""Combination of several errors into one that keeps their most specific common type, which determines the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType

from hookbus.errors import ConfigError, HookbusError


def raise_errors(errors: Iterable[HookbusError]) -> None:
    """Raise one error that contains all given ones; nothing is raised if there are none.

    Raises:
        HookbusError: If there is an error, see `combine_errors`.
    """
    if collected := list(errors):
        raise combine_errors(collected)


def combine_errors(errors: Sequence[HookbusError]) -> HookbusError:
    """Return one error that contains all given ones, in their order.

    Args:
        errors: At least one error.

    Returns:
        A single error itself; a ConfigError with all problems if every error is a ConfigError; otherwise an error of
        the most specific type that all of them have.
    """
    if len(errors) == 1:
        return errors[0]
    if all(isinstance(error, ConfigError) for error in errors):
        combined: HookbusError = ConfigError(problem for error in errors for problem in get_problems(error))
    else:
        combined = _get_common_type(errors)("\n".join(map(str, errors)))
    for note in (note for error in errors for note in getattr(error, "__notes__", ())):
        combined.add_note(note)
    return combined


def get_problems(error: HookbusError) -> list[str]:
    """Return the problems of a ConfigError, or the message of any other error."""
    return error.problems if isinstance(error, ConfigError) else [str(error)]


def replace_message(error: HookbusError, message: str) -> HookbusError:
    """Return an error of the same type, or of its nearest base class that only takes a message."""
    return _get_common_type([error])(message)


def _get_common_type(errors: Sequence[HookbusError]) -> type[HookbusError]:
    """Return the most specific common type whose only argument is the message."""
    return next(
        kind
        for kind in type(errors[0]).__mro__
        if issubclass(kind, HookbusError)
        and not isinstance(kind.__init__, FunctionType)  # a constructor with arguments of its own
        and all(isinstance(error, kind) for error in errors)
    )
