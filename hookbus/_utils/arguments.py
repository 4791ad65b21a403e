"""Validation of arguments. Errors are collected and raised together.

Unless stated otherwise, a `check_*` function returns the error message of one argument, or "" if the argument is
valid. `raise_config_error` raises the collected messages.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from numbers import Integral
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from hookbus._utils.imports import suggest_if_close
from hookbus._utils.known_keys import HOOK_SETTINGS, OPTIMIZER_ARGUMENTS, find_equivalent
from hookbus._utils.values import format_value
from hookbus.errors import ArgumentError, ConfigError, HookbusError, suggest_names

SEED_LIMIT = 2**63


def check_count(value: object, where: str, *, minimum: int = 1) -> None:
    """Raise unless a value is an integer that is large enough.

    Args:
        value: Value to check. Booleans are invalid.
        where: Name of the value, for the error message.
        minimum: Smallest valid value.

    Raises:
        ConfigError: If the value is invalid.
    """
    # `bool` is a subclass of `int`.
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError([f"{where}: expected an integer >= {minimum}, got {format_value(value)}."])


def raise_config_error(problems: Iterable[str]) -> None:
    """Raise the collected error messages, if any.

    Raises:
        ConfigError: If a message is not empty. The error contains one line per message.
    """
    messages = [problem for problem in problems if problem]
    if messages:
        raise ConfigError(messages)


def _require(is_valid: bool, name: str, expectation: str, value: object, fix: str = "") -> str:
    return "" if is_valid else f"{name}: should {expectation}, got {format_value(value)}.{fix}"


def check_bool(name: str, value: object) -> str:
    """Check that a value is a bool."""
    # Truthiness is not enough: the string "no" is true.
    return _require(isinstance(value, bool), name, "be True or False", value)


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """Check that a value is one of the accepted choices."""
    choices = list(known)
    hint = suggest_if_close(str(value), choices)
    return _require(value in choices, name, f"be one of {', '.join(choices)}", value, hint)


def check_seed(name: str, value: object) -> str:
    """Check that a value is a seed: an integer in [0, 2**63), or None."""
    is_number = isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) < SEED_LIMIT
    return _require(value is None or is_number, name, "be an integer from 0 to 2**63 - 1", value)


def check_callable(name: str, value: object, example: str) -> str:
    """Check that a value is callable, or None."""
    return _require(value is None or callable(value), name, "be callable", value, f" Pass {example}.")


def check_has_method(name: str, value: object, method: str) -> str:
    """Check that a value has a method, or is None."""
    is_valid = value is None or callable(getattr(value, method, None))
    return _require(is_valid, name, f"have a method {method}()", value)


def check_is_instance(name: str, value: object) -> str:
    """Check that a value is not a class."""
    # A class is callable as well: the loop would create an instance of it instead of calling the function.
    if not isinstance(value, type):
        return ""
    return f"{name}: should be an instance, got the class {value.__name__}. Pass {value.__name__}(...)."


def check_loader(name: str, value: object) -> str:
    """Check that a value is a data loader, a mapping of names to data loaders, or None."""
    if isinstance(value, Mapping):
        return " ".join(filter(None, (check_loader(f"{name}.{key}", loader) for key, loader in value.items())))
    is_iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
    is_valid = value is None or (is_iterable and not isinstance(value, (str, bytes)))
    fix = " Pass a DataLoader or another iterable of batches."
    return _require(is_valid, name, "be iterable in every epoch", value, fix)


def check_path(name: str, value: object) -> str:
    """Check that a value is a path, or None."""
    return _require(value is None or isinstance(value, (str, os.PathLike)), name, "be a path", value)


def check_mapping(name: str, value: object) -> str:
    """Check that a value is a configuration, a mapping or a pydantic model, or None."""
    is_valid = value is None or isinstance(value, Mapping) or hasattr(value, "model_dump")
    return _require(is_valid, name, "be a mapping of names to values, such as vars(args)", value)


def is_function_pair(value: object) -> bool:
    """Return whether a value is a pair of functions."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(map(callable, value))


def raise_errors(errors: Iterable[HookbusError]) -> None:
    """Raise one error that contains all given ones; nothing is raised if there are none.

    Raises:
        HookbusError: If there is an error, see `combine_errors`.
    """
    if collected := list(errors):
        raise combine_errors(collected)


def combine_errors(errors: Sequence[HookbusError]) -> HookbusError:
    """Return one error that contains all given ones, in their order.

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


def get_by_name(value: Any) -> Mapping[str, Any]:
    """Return objects by name; a single object has the name ""."""
    if isinstance(value, Mapping):
        return value
    return {} if value is None else {"": value}


def format_label(kind: str, name: str) -> str:
    """Return the description of an object in a message, such as "optimizer 'G'"."""
    return f"{kind} {name!r}" if name else kind


def schedules(scheduler: Any, optimizer: Any) -> bool:
    """Return whether a learning-rate scheduler changes a parameter group of an optimizer, or it is unknown."""
    own = getattr(scheduler, "optimizer", None)
    groups = {id(group) for group in getattr(own, "param_groups", ())}
    return own is None or any(id(group) in groups for group in optimizer.param_groups)


P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(label: str, *signatures: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that an unknown keyword argument is reported with the closest accepted name.

    The signature of the function is unchanged, also for type checkers.

    Args:
        label: Name of the function, for the error message.
        signatures: Functions that have the parameters, if the decorated one forwards its keyword arguments to them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = {
            name: parameter
            for accepting in signatures or (function,)
            for name, parameter in inspect.signature(accepting).parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        known = [name for name in parameters if name not in ("self", "bus")]

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # The difference of two key views: this is all that a call with valid arguments costs.
            if unknown := kwargs.keys() - parameters.keys():
                raise ArgumentError(_describe(label, name, known) for name in kwargs if name in unknown)
            return function(*args, **kwargs)

        return call

    return decorate


def with_parameters_of(_signature: Callable[P, object], function: Callable[..., R]) -> Callable[P, R]:
    """Return a function that forwards its arguments to another one with the parameters of that one, for type checkers.

    Args:
        _signature: Function that has the parameters.
        function: Function that forwards them.
    """
    return function


def _describe(label: str, name: str, known: list[str]) -> str:
    """Return the message about an unknown argument."""
    equivalent: Any = find_equivalent(name, known)
    hooks = [hook for hook, settings in HOOK_SETTINGS.items() if name in settings]
    hint = f" Pass {equivalent!r}, its name in hookbus." if equivalent else suggest_names(name, known)
    if name in OPTIMIZER_ARGUMENTS and "optimizer" in known:
        hint = f" It is the argument {OPTIMIZER_ARGUMENTS[name]!r} of the optimizer: pass it to `optimizer`."
    elif len(hooks) == 1 and not equivalent:
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
