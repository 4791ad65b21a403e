"""Report of schedules that are never due in a run: before the training if its limits are known, else at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hookbus._events.listeners import resolve_schedule
from hookbus._events.ordering import Listener
from hookbus._events.points import Point, Unit
from hookbus._events.schedules import NEVER, Schedule
from hookbus.errors import ConfigError
from hookbus.hook import Hook

if TYPE_CHECKING:
    from hookbus._run.run import Run

UNIT_NAMES: dict[Unit, str] = {
    "epoch": "epoch",
    "iter": "iteration",
    "step": "optimizer step",
    "sample": "sample",
    "seconds": "second",
}
_NO_EFFECT_ALONE = frozenset(
    [
        *("Config", "priority", "observer", "unit", "ranks"),
        *("state_version", "state_dict", "load_state_dict", "migrate_state", "check_state", "state_schema"),
    ]
)
"""Members of `Hook` that have no effect in a hook without listeners."""


class NeverDue:
    """Report the hooks of a run with a schedule that is never due, once each.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reported: set[str] = set()

    def report_before_training(self) -> None:
        """Warn about schedules beyond the limits of the run, or about a run that has reached them already."""
        run, clock = self._run, self._run.clock
        if run.mode == "train" and not clock.is_at_limit:
            self._report(find_unreachable(run))
        elif run.mode == "train":
            run.logger.warning(
                "Nothing to train: %s epochs and %s iterations are already complete. Increase the limit, or start from "
                "scratch.",
                clock.epochs_done,
                clock.iters_done,
            )

    def report_after_training(self) -> None:
        """Warn about schedules that the complete run did not reach."""
        # A run that was stopped may be resumed, and may reach them then.
        if self._run.mode == "train" and self._run.outcome == "finished" and self._run.iters_done:
            self._report(_find(self._run, self._count))

    def _report(self, problems: dict[str, str]) -> None:
        # In the order of registration: the order of a set differs between processes.
        for hook in [hook for hook in problems if hook not in self._reported]:
            self._run.logger.warning("hook %r %s", hook, problems[hook])
        self._reported |= problems.keys()

    def _count(self, unit: Unit) -> int | None:
        clock = self._run.clock
        counts: dict[Unit, int] = {
            "epoch": clock.epochs_done,
            "iter": clock.iters_done,
            "step": clock.steps_done,
            "sample": clock.samples_done,
            "seconds": clock.whole_seconds,
        }
        return counts.get(unit)


def find_unreachable(run: Run) -> dict[str, str]:
    """Return the problem of each hook without effect, or with a schedule beyond the limits of a run.

    Args:
        run: Run with its limits set; it has not started.
    """
    return {**_find_idle(run), **_find(run, run.clock.limit)}


def _find_idle(run: Run) -> dict[str, str]:
    """Return the problem of each hook that has no listener and overrides nothing that a run reads."""
    return {
        name: "has no listener, so it has no effect. Define a method named like a point, such as after_train_iter."
        for name, member in run.bus.pm.members.items()
        if isinstance(member.plugin, Hook) and not member.implementations and not _contributes(member.plugin)
    }


def _contributes(hook: Hook) -> bool:
    """Return whether a hook overrides a method or property of `Hook` that has an effect without listeners."""
    classes = type(hook).__mro__[: type(hook).__mro__.index(Hook)]
    overridden = {name for cls in classes for name in vars(cls)} & set(vars(Hook))
    return any(not name.startswith("_") and name not in _NO_EFFECT_ALONE for name in overridden)


def _find(run: Run, last_number: Callable[[Unit], int | None]) -> dict[str, str]:
    """Return the problem of each hook with a schedule that is never due."""
    problems: dict[str, str] = {}
    reachable: set[str] = set()
    has_no_epochs = run.iters_done > 0 and not (run.epochs_done or run.clock.epoch_open)
    for listener, point, schedule in _iter_schedules(run):
        unit = _get_unit(schedule, point, last_number)
        if unit is None:
            reachable |= {listener.hook} if _shares_schedule(listener.plugin) else set()
        # A default number was not chosen for this run. It is reported if the loop has no such unit at all.
        elif (unit == "epoch" and has_no_epochs) or not _is_default(run, listener, point):
            problem = _format(point, schedule, unit, last_number(unit))
            # One per hook: that of the point in whose unit the hook counts.
            is_main = point.unit == getattr(listener.plugin, "unit", None)
            problems[listener.hook] = problem if is_main else problems.get(listener.hook, problem)
    return {hook: problem for hook, problem in problems.items() if hook not in reachable}


def _iter_schedules(run: Run) -> Iterator[tuple[Listener, Point, Schedule]]:
    """Yield the listeners with an active schedule, and their points."""
    for name, point in run.bus.points.items():
        for listener in run.bus.table.listeners(name, run):
            schedule = listener.schedule
            # `every(None)`: the hook has no schedule at this point.
            if schedule is None or schedule.next_due(0, None) >= NEVER or _handles_ends(listener.plugin):
                continue
            yield listener, point, schedule


def _shares_schedule(plugin: object) -> bool:
    """Return whether the setting `when` is the schedule of all listeners, of which one may ignore it."""
    return isinstance(plugin, Hook) and plugin.config.when is not None


def _handles_ends(plugin: object) -> bool:
    return isinstance(plugin, Hook) and plugin.handles_incomplete_intervals


def _get_unit(schedule: Schedule, point: Point, last_number: Callable[[Unit], int | None]) -> Unit | None:
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
    end = f"{last} {UNIT_NAMES[unit]}{'' if last == 1 else 's'}"
    return (
        f"is never due at {point.name}: its schedule is {schedule!r}, and the run has {end}. Set numbers that the run "
        "reaches, or count in another unit."
    )
