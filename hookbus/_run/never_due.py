"""Report of schedules that are never due in a run: before the training if its limits are known, else at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from hookbus._events.listeners import resolve_schedule
from hookbus._events.ordering import Listener
from hookbus._events.points import Point, Unit
from hookbus._events.schedules import NEVER, Schedule
from hookbus._training.evaluation import named_loaders
from hookbus.data.loaders import loader_length
from hookbus.errors import ConfigError
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run

UNIT_NAMES: Mapping[Unit, str] = {"iter": "iteration", "step": "optimizer step", "seconds": "second"}
"""Names of units in messages, if they differ from the unit."""
LastNumber = Callable[[Unit], int | None]
"""Function that returns the last number of a run in a unit, None if it is unknown."""
NO_LISTENER = "has no listener, so it has no effect. Define a method named like a point, such as after_train_iter."
VALIDATION_POINTS = ("before_val_iter", "after_val_iter")
_NO_EFFECT_ALONE = frozenset(
    [
        *("Config", "get_milestones", "priority", "observer", "unit", "ranks"),
        *("state_version", "state_dict", "load_state_dict", "migrate_state", "check_state", "state_schema"),
    ]
)
"""Members of `Hook` that have no effect in a hook without listeners."""


def report_unreachable(run: Run) -> set[str]:
    """Warn about schedules beyond the limits of a training, or about one that has reached them already.

    Returns:
        Subjects of the warnings.
    """
    clock = run.clock
    if run.mode == "train" and not clock.is_at_limit:
        return _report(run, find_unreachable(run), set())
    if run.mode == "train":
        run.logger.warning(
            "Nothing to train: %s epochs and %s iterations are already complete. Increase the limit, or start from "
            "scratch.",
            clock.epochs_done,
            clock.iters_done,
        )
    return set()


def report_unreached(run: Run, reported: set[str]) -> None:
    """Warn about schedules that a complete training did not reach, except for the subjects of earlier warnings."""
    # A run that was stopped may be resumed, and may reach them then.
    if run.mode == "train" and run.outcome == "finished" and run.iters_done and not _is_dev_run(run):
        clock = run.clock
        counts: dict[Unit, int] = {
            "epoch": clock.epochs_done,
            "iter": clock.iters_done,
            "step": clock.steps_done,
            "sample": clock.samples_done,
            "token": clock.tokens.done,
            "seconds": clock.whole_seconds,
        }
        _report(run, {**_find_milestones(run, counts.get), **_find(run, counts.get)}, reported)


def _report(run: Run, problems: dict[str, str], reported: set[str]) -> set[str]:
    # In the order of registration: the order of a set differs between processes.
    for subject in [subject for subject in problems if subject not in reported]:
        run.logger.warning("%s %s", subject, problems[subject])
    return set(problems)


def find_unreachable(run: Run) -> dict[str, str]:
    """Return the problems of hooks without effect, and of schedules and settings beyond the limits of a run.

    Returns:
        The end of a sentence by its subject, such as `hook 'freeze'`.
    """
    if _is_dev_run(run):
        return _find_idle(run)
    last_number = run.clock.limit
    return {**_find_idle(run), **_find_milestones(run, last_number), **_find(run, last_number)}


def _is_dev_run(run: Run) -> bool:
    """Return whether the run is a `fast_dev_run`, in which settings for the full length are not due."""
    return run.trainer is not None and bool(run.trainer.short_run.dev_batches)


def _find_idle(run: Run) -> dict[str, str]:
    """Return the problem of each hook that has no listener and overrides nothing that a run reads."""
    return {
        f"hook {name!r}": NO_LISTENER
        for name, member in run.bus.pm.members.items()
        if isinstance(member.plugin, Hook) and not member.implementations and not _contributes(member.plugin)
    }


def _contributes(hook: Hook) -> bool:
    """Return whether a hook overrides a method or property of `Hook` that has an effect without listeners."""
    classes = type(hook).__mro__[: type(hook).__mro__.index(Hook)]
    overridden = {name for cls in classes for name in vars(cls)} & set(vars(Hook))
    return any(not name.startswith("_") and name not in _NO_EFFECT_ALONE for name in overridden)


def _find_milestones(run: Run, last_number: LastNumber) -> dict[str, str]:
    """Return the problem of each hook, and of the scheduler, with a setting beyond the end of the run."""
    problems: dict[str, str] = {}
    for subject, milestones in _iter_milestones(run):
        for setting, (number, unit) in milestones.items():
            last = last_number(unit)
            if last is not None and number > last:
                end, required = _count_units(last, unit), _count_units(number, unit)
                problems[subject] = (
                    f"requires {required} for {setting!r}, and the run has {end}. Set a number that the run reaches, "
                    "or count in another unit."
                )
    return problems


def _iter_milestones(run: Run) -> Iterator[tuple[str, Mapping[str, tuple[int, Unit]]]]:
    """Yield the numbers that settings require, without defaults, which were not chosen for this run."""
    for name, hook in run.bus.hooks.items():
        if isinstance(hook, Hook) and run.runs_on_this_rank(hook):
            milestones = hook.get_milestones(run)
            chosen = {setting: value for setting, value in milestones.items() if not hook.config.is_default(setting)}
            yield f"hook {name!r}", chosen
    if run.trainer is not None:
        yield "scheduler", run.trainer.scheduler.get_milestones()


def _find(run: Run, last_number: LastNumber) -> dict[str, str]:
    """Return the problem of each hook with a schedule that is never due."""
    problems: dict[str, str] = {}
    reachable: set[str] = set()
    has_no_epochs = run.iters_done > 0 and not (run.epochs_done or run.clock.epoch_open)
    for listener, point, schedule in _iter_schedules(run):
        last = partial(_get_last_number, run, last_number, point)
        unit = _get_unit(schedule, point, last)
        if unit is None:
            # The setting `when` is the schedule of all listeners, of which one may ignore it.
            is_shared = isinstance(listener.plugin, Hook) and listener.plugin.config.when is not None
            reachable |= {listener.hook} if is_shared else set()
        # A default number was not chosen for this run. It is reported if the loop has no such unit at all.
        elif (unit == "epoch" and has_no_epochs) or not _is_default(run, listener, point):
            problem = _format(point, schedule, unit, last(unit))
            # One per hook: that of the point in whose unit the hook counts.
            is_main = point.unit == getattr(listener.plugin, "unit", None)
            problems[listener.hook] = problem if is_main else problems.get(listener.hook, problem)
    return {f"hook {hook!r}": problem for hook, problem in problems.items() if hook not in reachable}


def _get_last_number(run: Run, last_number: LastNumber, point: Point, unit: Unit) -> int | None:
    """Return the last number in a unit at a point; batches are counted in each loop over a loader."""
    if unit != "batch":
        return last_number(unit)
    if point.unit != "batch":
        length, observed = run.clock.epoch_length, run.clock.observed_epoch_length
        # The last epoch may have been longer than the training loader.
        bounds = (None if length is None else max(length, observed or 0), last_number("iter"))
        return min((bound for bound in bounds if bound is not None), default=None)
    return _get_validation_length(run) if point.name in VALIDATION_POINTS else None


def _get_validation_length(run: Run) -> int | None:
    """Return the number of batches of the longest validation loader, None if it is unknown."""
    hooks = [hook for hook in run.bus.hooks.values() if isinstance(hook, Hook)]
    # A custom loop, or a hook that replaces the validation, may read other data.
    if run.trainer is None or run.val_loader is None or any(hook.validation_fn is not None for hook in hooks):
        return None
    lengths = [loader_length(loader) for _, loader in named_loaders(run.val_loader)]
    return None if None in lengths else max(filter(None, lengths), default=None)


def _iter_schedules(run: Run) -> Iterator[tuple[Listener, Point, Schedule]]:
    """Yield the listeners with an active schedule, and their points."""
    for name, point in run.bus.points.items():
        for listener in run.bus.table.listeners(name, run):
            schedule, plugin = listener.schedule, listener.plugin
            handles_ends = isinstance(plugin, Hook) and plugin.handles_incomplete_intervals
            # `every(None)`: the hook has no schedule at this point.
            if schedule is not None and schedule.next_due(0, None) < NEVER and not handles_ends:
                yield listener, point, schedule


def _get_unit(schedule: Schedule, point: Point, last_number: LastNumber) -> Unit | None:
    """Return a unit in which the run ends before the schedule is due; None if the schedule may be due."""
    default: Unit = point.unit or "iter"
    if not schedule.is_out_of_reach(lambda unit: last_number(unit or default)):
        return None
    return min((unit or default for unit in schedule.units()), key=lambda unit: last_number(unit) is None)


def _is_default(run: Run, listener: Listener, point: Point) -> bool:
    """Return whether a schedule results from the default settings of a hook, written out or not."""
    plugin = listener.plugin
    options = run.bus.pm.members[listener.hook].implementations[point.name].options
    if not isinstance(plugin, Hook) or _is_fixed(options.get("when")):
        return False
    # Not `copy.copy`, which a hook may not support or which may change what the two share.
    twin = object.__new__(type(plugin))
    vars(twin).update(vars(plugin))
    try:
        twin._config = type(plugin.config)()
        return resolve_schedule(twin, options, point) == listener.schedule
    except (TypeError, ValueError):  # a setting has no default
        return False


def _is_fixed(when: object) -> bool:
    """Return whether a schedule is independent of settings."""
    try:
        return isinstance(when, Schedule) and when.resolve(None) == when
    except ConfigError:
        return False


def _format(point: Point, schedule: Schedule, unit: Unit, last: int | None) -> str:
    owner = "an epoch" if unit == "batch" else "the run"
    return (
        f"is never due at {point.name}: its schedule is {schedule!r}, and {owner} has {_count_units(last, unit)}. Set "
        f"numbers that {owner} reaches, or count in another unit."
    )


def _count_units(number: int | None, unit: Unit) -> str:
    plural = "" if number == 1 else "es" if unit == "batch" else "s"
    return f"{number} {UNIT_NAMES.get(unit, unit)}{plural}"
