"""Order of the listeners and the origin of their priorities, as shown by `bus.explain()` and `hookbus explain`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from hookbus._events.checks import Implementation
from hookbus._events.listeners import resolve_priority
from hookbus._events.ordering import Listener
from hookbus._events.schedules import NEVER
from hookbus._events.table import EventRun, EventTable
from hookbus._utils.packages import package_label

NEVER_DUE = "never"
"""Schedule of a listener that the settings disable."""


@dataclass(frozen=True, slots=True)
class Row:
    """One listener at one point.

    Attributes:
        hook: Instance name.
        package: Distribution of the hook.
        priority: Priority.
        source: Origin of the priority.
        when: Schedule, "" for every event.
        role: "replaces" or "wraps" for an action, "" for a point.
        before, after: Names of hooks it must run before and after. Hooks that do not listen at the point are
            parenthesized.
    """

    hook: str
    package: str
    priority: int
    source: str
    when: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    role: Literal["", "replaces", "wraps"] = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Execution order of the listeners at every point that has listeners, and of the hooks of every action.

    Attributes:
        order: "nested" or "ascending".
        points: Listeners by point, in the order of a run.
        actions: Hooks by the action that they replace or wrap, outermost first.
    """

    order: str
    points: dict[str, list[Row]]
    actions: dict[str, list[Row]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"order: {self.order}"]
        for point, rows in self.points.items():
            lines.append(point)
            lines += [f"  {row.priority:>4}  {row.hook}  ({row.source}){_format_options(row)}" for row in rows]
        for action, rows in self.actions.items():
            lines.append(f"action {action}")
            lines += [f"  {row.priority:>4}  {row.hook}  ({row.source})  {row.role}" for row in rows]
        return "\n".join(lines)


def explain(table: EventTable, run: EventRun, actions: Iterable[str] = ()) -> Explanation:
    """Return the order of the listeners for a run, and of the hooks of actions.

    Raises:
        OrderError: If the before=/after= constraints form a cycle.
    """
    points = {point: _build_rows(table.listeners(point, run)) for point in table.points}
    by_action = {
        action: [_build_action_row(table, item) for item in table.action_implementations(action, run)]
        for action in actions
    }
    return Explanation(
        table.order,
        {point: rows for point, rows in points.items() if rows},
        {action: rows for action, rows in by_action.items() if rows},
    )


def _build_action_row(table: EventTable, item: Implementation) -> Row:
    priority, source = resolve_priority(item, table.priority_overrides.get(item.hook))
    role: Literal["replaces", "wraps"] = "wraps" if item.options.get("wrapper") else "replaces"
    return Row(item.hook, package_label(item.plugin), priority, source, role=role)


def _build_rows(listeners: list[Listener]) -> list[Row]:
    names = {listener.hook for listener in listeners}
    return [
        Row(
            item.hook,
            package_label(item.plugin),
            item.priority,
            item.source,
            format_schedule(item),
            _mark_absent(item.before, names),
            _mark_absent(item.after, names),
        )
        for item in listeners
    ]


def format_schedule(listener: Listener) -> str:
    """Return the schedule of a listener; "" for every event, "never" if its settings disable it."""
    schedule = listener.schedule
    # Such as `every(None)`, the schedule of a listener that the settings disable.
    if schedule is not None and schedule.next_due(0, None) == NEVER:
        return NEVER_DUE
    parts = [repr(schedule) if schedule is not None else "", "should_trigger" if listener.predicate else ""]
    return " & ".join(filter(None, parts))


def _mark_absent(constraints: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    return tuple(name if name in names else f"({name}: absent)" for name in constraints)


def _format_options(row: Row) -> str:
    options = {"when": row.when, "before": ", ".join(row.before), "after": ", ".join(row.after)}
    parts = [f"{name} {text}" for name, text in options.items() if text]
    return f"  {'; '.join(parts)}" if parts else ""
