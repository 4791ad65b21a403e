"""Registration of hooks while a run is active.

A hook that is registered during a run is opened at its registration: its preconditions are checked, it receives the
opening events of everything that is open, from `before_run` inward, and it takes part in the next event.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hookbus._events.registry import FunctionPlugin
from hookbus._run.participants import WITHIN
from hookbus._run.preconditions import find_hook_errors, find_limit_errors
from hookbus._utils.arguments import raise_errors
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run


def admit(run: Run, name: str, hook: object) -> None:
    """Check and open a hook that was registered; no effect before and after the run.

    Raises:
        HookbusError: If a precondition is not met. The hook is not registered then.
        Exception: If an opening event fails. The hook is not registered then; it has received `cleanup`.
    """
    participants = run.participants
    if not participants.brackets or run.exception is not None:
        return  # `before_run` opens it, or the next run does
    with _removed_on_error(run, name):
        raise_errors(run.bus.pm.find_unmatched([name]))
        run.bus.table.check_order(run)
        raise_errors(find_limit_errors(run, [name]))
        # A function has nothing to prepare: it is called at the next event of its point.
        if isinstance(hook, FunctionPlugin) or not run.runs_on_this_rank(hook):
            participants.add(name)
            return
        if isinstance(hook, Hook):
            raise_errors(find_hook_errors(run, {name: hook}))
        run.request_sync.check_late(name, hook)
        _open(run, name, hook)


@contextmanager
def _removed_on_error(run: Run, name: str) -> Iterator[None]:
    """Context manager that unregisters a hook after an error."""
    try:
        yield
    except BaseException:
        if name in run.bus.hooks:
            run.bus.unregister(name)
        raise


def _open(run: Run, name: str, hook: object) -> None:
    """Emit the opening events of everything that is open to one hook."""
    run.participants.add(name)
    _emit(run, "before_run", name)
    if run.resumed is not None:  # the setup of the run is complete
        if run.mode == "train" and run.config:
            _emit(run, "log_config", name)
        _restore(run, name, hook)
    for bracket in run.participants.brackets[1:]:
        if bracket == "train" and isinstance(hook, CheckpointSaver):
            run.watch_completeness()
        _emit(run, f"before_{bracket}", name)
    run.participants.wait(name)


def _emit(run: Run, point: str, name: str) -> None:
    """Emit a point to one hook, unless it has unregistered itself."""
    if name in run.bus.hooks and point not in WITHIN:
        run.bus.table.compile_for_hook(point, name, run)()


def _restore(run: Run, name: str, hook: object) -> None:
    """Load the state that the resumed checkpoint contains for a hook."""
    if isinstance(hook, Hook) and name in run.orphaned_hook_states:
        from hookbus.checkpoint.hook_states import load_late_state  # imports torch

        load_late_state(run, name, hook)
