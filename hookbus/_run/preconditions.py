"""Preconditions of a run, and of a hook that is registered while the run is active.

Those of a run are checked before its work directory is acquired and before any event is emitted. `bus.run`,
`Trainer.fit` and `Trainer.check` verify the same list. The Trainer adds what only it knows, see
`hookbus.trainer.preconditions`.

A hook that is registered during a run is opened at its registration: its preconditions are checked, it receives the
opening events of everything that is open, from `before_run` inward, and it takes part in the next event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from hookbus._events.registry import FunctionPlugin
from hookbus._run.clock import Clock
from hookbus._run.declarations import find_declaration_errors, find_name_errors
from hookbus._run.host_needs import find_host_errors, find_second_lr_schedules, format_hook, report_differences
from hookbus._run.participants import WITHIN
from hookbus._run.point_counters import PointCounters
from hookbus._run.tokens import NOT_COUNTED
from hookbus._run.work_dir import DIRECTORIES
from hookbus._utils.arguments import raise_errors, replace_message
from hookbus._utils.files import find_path_problem
from hookbus.checkpoint.saver import CheckpointSaver
from hookbus.distributed.fsdp import get_fsdp_modules
from hookbus.errors import ConfigError, HookbusError, HookError, RequestError
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._events.ordering import Listener
    from hookbus._events.points import Point
    from hookbus._run.run import Run

NO_VALIDATION = (
    "the run has no validation function. Pass val_loader= to the Trainer (in a run file: a dataset with the split "
    "`val`), or validate= to bus.run."
)


def check_preconditions(run: Run) -> None:
    """Check that a run can start. All errors at once: a run on a cluster is often started only to find the next one.

    Raises:
        HookbusError: If a precondition is not met. The message contains all of them, one per line.
    """
    raise_errors(_find_errors(run))


def _find_errors(run: Run) -> Iterator[HookbusError]:
    yield from run.bus.pm.find_unmatched()
    try:
        run.bus.check_attachable(run)
    except HookError as error:
        yield error  # without an order there are no listeners whose schedules could be checked
    else:
        yield from find_limit_errors(run, run.bus.hooks)
    yield from _find_token_errors(run)
    hooks = {name: hook for name, hook in run.bus.hooks.items() if isinstance(hook, Hook)}
    yield from find_hook_errors(run, {name: hook for name, hook in hooks.items() if run.runs_on_this_rank(hook)})
    try:
        get_fsdp_modules(run.model)
    except ConfigError as error:
        yield error


def _find_token_errors(run: Run) -> Iterator[ConfigError]:
    """Yield the errors of a limit in tokens that are not counted, and of tokens that a host cannot count or limit."""
    if run.max_tokens is not None and not run.counts_tokens:
        yield ConfigError([f"tokens: {NOT_COUNTED}"])
    if run.host is None:
        return
    name = run.host.capabilities.host
    if run.max_tokens is not None:
        yield ConfigError([f"tokens: {name} has a limit of its own. Set that one, and remove `tokens`."])
    if run.counts_tokens and not run.host.capabilities.batch:
        yield ConfigError([f"batch_tokens: {name} passes no batch whose tokens could be counted. Remove it."])


def find_hook_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[HookbusError]:
    """Yield the errors of hooks of a run: validations and directories that they require, and their own checks."""
    if declared := list(find_declaration_errors(hooks)):  # the checks of other hooks read them
        yield from declared
        return
    # First, because a hook may find the metrics that it requires in its check.
    errors = [*_find_check_errors(run, hooks), *find_name_errors(hooks)]
    if run.host is not None:
        yield from find_host_errors(
            hooks,
            run.host.capabilities,
            run.host.checkpoints,
            has_validation=_has_validation_function(run),
        )
    if run.mode == "train":
        yield from _find_validation_errors(run, hooks)
        yield from _find_output_errors(run, hooks)
        yield from find_second_lr_schedules(run, hooks)
    yield from errors


def _find_check_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[HookbusError]:
    for name, hook in hooks.items():
        try:
            hook.check(run)
        except ConfigError as error:
            yield ConfigError(f"{format_hook(name, hook)}: {problem}" for problem in error.problems)
        except HookbusError as error:
            yield replace_message(error, f"{format_hook(name, hook)}: {error}")
        except Exception as error:
            error.add_note(f"raised by {format_hook(name, hook)} in check")
            raise


def _has_validation_function(run: Run) -> bool:
    try:
        return run.validations.has_evaluator("val")
    except RequestError:  # there are two, which `_find_validation_errors` reports
        return True


def describe_missing_validation(reader: str, metrics: Collection[str]) -> str:
    """Return the problem of a run without validations."""
    required = f"{', '.join(map(repr, metrics))} of a validation" if metrics else "validations"
    return f"{reader} requires {required}, but {NO_VALIDATION}"


def _find_validation_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[ConfigError]:
    """Yield the errors of hooks that require validations if there are none, or of two hooks that both validate."""
    try:
        is_available = run.validations.is_available("val")
    except RequestError as error:
        yield ConfigError(str(error))
        return
    if is_available or run.host is not None:  # `find_host_errors` compares the hooks with a host
        return
    for name, hook in hooks.items():
        if hook.schedules_validation:
            yield ConfigError([f"{format_hook(name, hook)}: the hook requests validations, but {NO_VALIDATION}"])
        # A custom loop may validate itself: it emits `after_val` with its results.
        elif run.trainer is not None and hook.requires_validation:
            yield ConfigError([describe_missing_validation(format_hook(name, hook), hook.required_metrics)])


def _find_output_errors(run: Run, hooks: Mapping[str, Hook]) -> Iterator[ConfigError]:
    """Yield the errors of hooks whose files would be in the work directory of a run without one."""
    # A service that replaces one of the directories is enough for the hooks that use it.
    if any(run.get(service) is not None for service in ("experiment_dir", *DIRECTORIES)):
        return
    for name, hook in hooks.items():
        paths = {setting: path for setting, path in hook.output_paths.items() if path is not None}
        problems = [problem for item in paths.items() if (problem := find_path_problem(*item))]
        if hook.requires_work_dir and not paths:
            others = "".join(f", or set `{setting}` to an absolute path" for setting in hook.output_paths)
            problems = [f"requires a work directory, got none. Set `work_dir`{others}."]
        if problems:
            yield ConfigError(f"{format_hook(name, hook)}: {problem}" for problem in problems)


def find_limit_errors(run: Run, hooks: Collection[str]) -> Iterator[ConfigError]:
    """Yield the errors of schedules that require the end of the training, or a loader, if there is none."""
    if run.mode != "train":
        return
    for name, point in run.bus.points.items():
        for listener in run.bus.table.listeners(name, run):
            if listener.hook in hooks and (problem := _find_limit_problem(run, listener, point)):
                yield ConfigError([f"hook {listener.hook!r} at {name}: {problem}"])


def _find_limit_problem(run: Run, listener: Listener, point: Point) -> str:
    """Return why the schedule of a listener can never be evaluated, or "" if it can."""
    clock = Clock()
    clock.max_epochs, clock.max_iters, clock.epoch_length = run.max_epochs, run.max_iters, run.clock.epoch_length
    clock.counts_tokens, clock.tokens.limit = run.counts_tokens, run.max_tokens
    if run.trainer is None:  # the length is known as soon as a custom loop reads its loader through `run.batches`
        clock.epoch_length = clock.epoch_length or 1
    try:
        if listener.schedule is not None:
            listener.schedule.check_limit(PointCounters(clock, point, run))
    except ConfigError as error:
        return str(error)
    return ""


def admit(run: Run, name: str, hook: object) -> None:
    """Check and open a hook that was registered; no effect before and after the run.

    Raises:
        HookbusError: If a precondition is not met. The hook is not registered then.
        Exception: If an opening event fails. The hook is not registered then; it has received `cleanup`.
    """
    participants = run.participants
    if not participants.brackets or run.exception is not None:
        return  # `before_run` opens it, or the next run does
    try:
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
        report_differences(run, [name])
        _open(run, name, hook)
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
        if isinstance(hook, Hook) and name in run.orphaned_hook_states:
            from hookbus.checkpoint.hook_states import load_late_state  # imports torch

            load_late_state(run, name, hook)
    for bracket in run.participants.brackets[1:]:
        if bracket == "train" and isinstance(hook, CheckpointSaver):
            run.watch_completeness()
        _emit(run, f"before_{bracket}", name)
    run.participants.wait(name)


def _emit(run: Run, point: str, name: str) -> None:
    """Emit a point to one hook, unless it has unregistered itself."""
    if name in run.bus.hooks and point not in WITHIN:
        run.bus.table.compile_for_hook(point, name, run)()
