"""Preconditions of hooks, checked for all hooks before a run starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from hookbus._utils.packages import package_label
from hookbus.errors import ConfigError, HookbusError, RequestError
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["check_hooks", "find_hook_errors", "raise_errors"]


def check_hooks(run: Run) -> None:
    """Check the preconditions of each hook of a run.

    Args:
        run: Run to check; it need not have started.

    Raises:
        HookbusError: If a precondition is not met. The message contains all of them, one per line.
    """
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    raise_errors(find_hook_errors(run, {name: hook for name, hook in hooks.items() if run.runs_on_this_rank(hook)}))


def raise_errors(errors: Iterable[HookbusError]) -> None:
    """Raise an error with the messages of all errors, one per line; no effect if there are none."""
    # All errors at once: a run on a cluster is often started only to find the next one.
    failures = list(errors)
    if len(failures) == 1:
        raise failures[0]
    if failures and all(isinstance(failure, ConfigError) for failure in failures):
        raise ConfigError(problem for failure in failures for problem in getattr(failure, "problems", ()))
    if failures:
        raise HookbusError("\n".join(map(str, failures)))


def find_hook_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[HookbusError]:
    """Yield the errors of hooks of a run: validations that they require, and their own checks.

    Args:
        run: The run.
        hooks: Hooks to check, by name.
    """
    yield from _iter_validation_errors(run, hooks)
    for name, hook in hooks.items():
        try:
            hook.check(run)
        except ConfigError as error:
            yield ConfigError(_format_message(name, hook, problem) for problem in error.problems)
        except HookbusError as error:
            yield type(error)(_format_message(name, hook, str(error)))


def _iter_validation_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[HookbusError]:
    """Yield the errors of hooks that schedule validations if the run cannot validate, or two hooks validate."""
    names = [name for name, hook in hooks.items() if run.mode == "train" and hook.schedules_validation]
    try:
        if not names or run.validations.is_available("val"):
            return
    except RequestError as error:
        yield error
        return
    problem = (
        "the hook requests validations, but the run has no validation function. Pass val_loader= to the Trainer, or "
        "validate= to bus.run."
    )
    yield from (RequestError(_format_message(name, hooks[name], problem)) for name in names)


def _format_message(name: str, hook: Hook, problem: str) -> str:
    """Return a message that starts with the hook and its package."""
    return f"hook {name!r} ({package_label(hook)}): {problem}"
