"""Keyword arguments: unknown ones of public functions, with the argument that was meant, and those in settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping
from typing import Any, ParamSpec, TypeVar

from hookbus._utils.framework_keys import find_equivalent
from hookbus._utils.known_keys import HOOK_SETTINGS
from hookbus.errors import ArgumentError, suggest_names

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(label: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that an unknown keyword argument is reported with the closest accepted name.

    The signature of the function is unchanged, also for type checkers.

    Args:
        label: Name of the function, for the message.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        known = [name for name in parameters if name not in ("self", "bus")]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # The difference of two key views: this is all that a call with valid arguments costs.
            if unknown := kwargs.keys() - parameters.keys():
                raise ArgumentError(_describe(label, name, known) for name in kwargs if name in unknown)
            return function(*args, **kwargs)

        return call

    return decorate


def _describe(label: str, name: str, known: list[str]) -> str:
    """Return the message about an unknown argument."""
    equivalent: Any = find_equivalent(name, known)
    hooks = [hook for hook, settings in HOOK_SETTINGS.items() if name in settings]
    hint = f" Pass {equivalent!r}, its name in hookbus." if equivalent else suggest_names(name, known)
    if len(hooks) == 1 and not equivalent:
        hint = f" It is a setting of the hook {hooks[0]!r}: pass it to that hook."
    return f"{label}: unexpected keyword argument {name!r}.{hint}"


def split_settings(
    settings: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], common_keys: Container[str]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the arguments of a class, its other settings, and the names of unknown arguments.

    Args:
        settings: Settings of an object, for its class and for hookbus.
        parameters: Parameters of the class.
        common_keys: Keys that hookbus reads, unless the class has a parameter of this name.
    """
    common = {key: value for key, value in settings.items() if key in common_keys and key not in parameters}
    own = {key: value for key, value in settings.items() if key not in common}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return own, common, [] if takes_any else [key for key in own if key not in parameters]
