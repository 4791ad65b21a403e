"""The order in which the listeners of a point are called.

- `before_*` points call the listeners by ascending priority, `after_*` and `cleanup` by descending priority: a hook
  with a lower priority encloses the others, like an outer context manager. All other points use ascending priority.
- Equal priorities keep the order of registration, which is reversed together with the priorities.
- `order="ascending"` of a bus disables the reversal.
- `before=` and `after=` constraints of a listener refer to the call order and take precedence over priorities.

`Point.reverse` contains the direction of a point. `hookbus explain` prints the resulting order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookbus._events.schedules import Schedule
from hookbus.errors import OrderError

DEFAULT_PRIORITY = 50
"""Priority of plugins that define none."""


@dataclass(slots=True)
class Listener:
    """One method of one hook at one point.

    Attributes:
        hook: Instance name of the hook.
        plugin: The hook.
        point: Name of the point.
        call: Bound method or function.
        argument_names: Names of its positional arguments, in canonical spelling.
        accepts_kwargs: Whether it accepts `**kwargs`.
        priority: Priority.
        source: Origin of the priority, for `explain`.
        schedule: Schedule, None for every event.
        predicate: `should_trigger` of the hook, called with the index from 0 if the schedule is due; None if it is not
            overridden.
        before, after: Names of hooks it must run before or after.
    """

    hook: str
    plugin: object
    point: str
    call: Callable[..., Any]
    argument_names: tuple[str, ...]
    accepts_kwargs: bool = False
    priority: int = DEFAULT_PRIORITY
    source: str = "default"
    schedule: Schedule | None = None
    predicate: Callable[[int], object] | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def sort_listeners(listeners: Sequence[Listener], reverse: bool) -> list[Listener]:
    """Return the listeners of one point in execution order.

    Listeners are sorted by ascending priority, ties by order of registration; both are reversed if `reverse` is True.
    The `before`/`after` constraints take precedence: the next listener is always the first one, in that order, whose
    constraints are satisfied (topological sort).

    Raises:
        OrderError: If the constraints form a cycle. The message contains the cycle.
    """
    # `sorted` is stable, which keeps registration order for equal priorities.
    base = sorted(listeners, key=lambda listener: listener.priority)
    if reverse:
        base.reverse()
    if not any(listener.before or listener.after for listener in base):
        return base
    waiting = _predecessors(base)
    result: list[Listener] = []
    while waiting:
        # The first one keeps the result as close to the priorities as the constraints allow.
        ready = next((i for i, predecessors in waiting.items() if predecessors.isdisjoint(waiting)), None)
        if ready is None:
            raise OrderError(_describe_cycle(base, waiting))
        result.append(base[ready])
        del waiting[ready]
    return result


def _predecessors(base: Sequence[Listener]) -> dict[int, set[int]]:
    """Return the indices of the listeners that must run before each listener."""
    return {
        i: {j for j, b in enumerate(base) if i != j and (b.hook in a.after or a.hook in b.before)}
        for i, a in enumerate(base)
    }


def _describe_cycle(base: Sequence[Listener], waiting: Mapping[int, set[int]]) -> str:
    # Every remaining listener has a remaining predecessor, so that following predecessors must repeat an index.
    path = [next(iter(waiting))]
    while path.count(path[-1]) < 2:
        path.append(min(waiting[path[-1]] & waiting.keys()))
    cycle = path[path.index(path[-1]) :]
    chain = " before ".join(repr(base[i].hook) for i in reversed(cycle))
    return f"{base[cycle[0]].point}: before=/after= constraints form a cycle: {chain}. Remove one of them."
