"""Can every hook do its work in this run? Looked at before anything is done, for all hooks at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook) and run.serves(hook)}
    yield from _without_validations(run, hooks)
    for name, hook in hooks.items():
        try:
            hook.check(run)
        except ConfigError as error:
            yield ConfigError(_of_hook(name, hook, problem) for problem in error.problems)
        except HookbusError as error:
            yield type(error)(_of_hook(name, hook, str(error)))


def _without_validations(run: Run, hooks: Mapping[str, Hook]) -> Iterator[HookbusError]:
    """What is wrong where hooks will ask for validations that the run cannot make, or that two of them make."""
    asking = [name for name, hook in hooks.items() if run.mode == "train" and hook.schedules_validation]
    try:
        if not asking or run.validations.can_make("val"):
            return
    except RequestError as error:
        yield error
        return
    needed = "it will ask for validations, and this run has no way to make one: give val_loader= to the Trainer, or "
    yield from (RequestError(_of_hook(name, hooks[name], f"{needed}validate= to bus.run.")) for name in asking)


def _of_hook(name: str, hook: Hook, problem: str) -> str:
    return f"hook {name!r} ({package_of(hook)}): {problem}"
