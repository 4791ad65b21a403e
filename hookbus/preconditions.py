"""Can every hook do its work in this run? Looked at before anything is done, for all hooks at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookbus._packages import package_of
from hookbus.errors import ConfigError, HookbusError, RequestError
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["check_hooks"]


def check_hooks(run: Run) -> None:
    """See that each hook of a run finds what it needs.

    Args:
        run: the run; it need not have begun.

    Raises:
        HookbusError: one does not. Where several do not, all of them are in the message, a line each.
    """
    failures = list(_failures(run))
    if len(failures) == 1:
        raise failures[0]
    if failures and all(isinstance(each, ConfigError) for each in failures):
        raise ConfigError(problem for each in failures for problem in getattr(each, "problems", ()))
    if failures:
        raise HookbusError("\n".join(map(str, failures)))


def _failures(run: Run) -> Iterator[HookbusError]:
    for name, hook in run.bus.hooks.items():
        if not isinstance(hook, Hook) or not run.serves(hook):
            continue
        try:
            _check_validations(run, hook)
            hook.check(run)
        except ConfigError as error:
            yield ConfigError(_of_hook(name, hook, problem) for problem in error.problems)
        except HookbusError as error:
            yield type(error)(_of_hook(name, hook, str(error)))


def _check_validations(run: Run, hook: Hook) -> None:
    asks = run.mode == "train" and hook.schedules_validation and hook.validates_with is None
    if asks and not run.validations.can_make("val"):
        raise RequestError(
            "it will ask for validations, and this run has no way to make one: give val_loader= to the Trainer, or "
            "validate= to bus.run."
        )


def _of_hook(name: str, hook: Hook, problem: str) -> str:
    return f"hook {name!r} ({package_of(hook)}): {problem}"
