"""In what order, and how fast? Pure functions behind the bus.

`ordered` puts the listeners of a point in their order. `compile_point` writes a Python function that calls
them one after the other with exactly the arguments they take; the loop calls nothing else. Schedules cost
one comparison per unit for all of a point's scheduled listeners together. Which listener is called in which line
is kept beside the function, see `hookbus._running`.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from hookbus._running import LINES, failed
from hookbus.clock import Clock
from hookbus.dispatch.due import Due
from hookbus.errors import OrderError
from hookbus.lifecycle import Point
from hookbus.when import Schedule

__all__ = ["Listener", "compile_point", "load_text", "ordered"]


@dataclass(slots=True)
class Listener:
    """One method of one hook at one point.

    Attributes:
        hook: the instance name of the hook.
        plugin: the hook itself.
        point: the name of the point.
        call: the bound method or function.
        wants: the arguments it takes, by position, under the point's own names.
        rest: whether it takes `**kwargs` as well.
        priority: the number that orders it.
        source: where the number comes from, for `explain`.
        schedule: when it is due; None for always.
        asks: the hook's own `should_trigger`, asked with the index from 0 where the schedule is due; None for none.
        before, after: names of hooks it must run before or after.
    """

    hook: str
    plugin: object
    point: str
    call: Callable[..., Any]
    wants: tuple[str, ...]
    rest: bool = False
    priority: int = 50
    source: str = "default"
    schedule: Schedule | None = None
    asks: Callable[[int], object] | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


# -- order -------------------------------------------------------------------------------------------


def ordered(listeners: Sequence[Listener], reverse: bool) -> list[Listener]:
    """The time order of the listeners of one point.

    Numbers from small to large, ties in the order of registration; both turned around where `reverse`.
    Names win over numbers: of the listeners whose `before`/`after` wishes are met, the one that the
    numbers put first comes next.

    Args:
        listeners: in the order of registration.
        reverse: True where large numbers run first.

    Raises:
        OrderError: the wishes contradict each other; the message shows the circle.
    """
    base = sorted(listeners, key=lambda listener: listener.priority)
    if reverse:
        base.reverse()
    if not any(listener.before or listener.after for listener in base):
        return base
    waiting = dict(enumerate(_wishes(base)))
    result: list[Listener] = []
    while waiting:
        free = [i for i, befores in waiting.items() if not befores]
        if not free:
            raise OrderError(_circle(base, waiting))
        chosen = min(free)
        result.append(base[chosen])
        del waiting[chosen]
        for befores in waiting.values():
            befores.discard(chosen)
    return result


def _wishes(base: Sequence[Listener]) -> list[set[int]]:
    """For each listener, those that must come before it."""
    earlier: list[set[int]] = [set() for _ in base]
    for i, listener in enumerate(base):
        for j, other in enumerate(base):
            if i != j and other.hook in listener.after:
                earlier[i].add(j)
            if i != j and other.hook in listener.before:
                earlier[j].add(i)
    return earlier


def _circle(base: Sequence[Listener], waiting: dict[int, set[int]]) -> str:
    path = [next(iter(waiting))]
    while path.count(path[-1]) < 2:
        path.append(min(waiting[path[-1]]))
    circle = path[path.index(path[-1]) :]
    chain = " before ".join(repr(base[i].hook) for i in reversed(circle))
    return f"{base[circle[0]].point}: the wishes go round in a circle: {chain}. Drop one of the before=/after=."


# -- the generated function --------------------------------------------------------------------------


def compile_point(
    point: Point,
    listeners: Sequence[Listener],
    clock: Clock,
    *,
    run: object,
    fill: dict[str, str],
    names: dict[str, object],
    recover: Callable[[BaseException, Listener, Clock, Callable[[], None]], bool],
    first: Sequence[str] = (),
    finally_: Sequence[str] = (),
) -> Callable[..., None]:
    """Write the function that fires a point: keyword arguments of the point in, listeners called in order.

    Args:
        point: the point.
        listeners: in time order.
        clock: the clock of the run.
        run: what listeners get as `run`.
        fill: expressions, by argument, for those that the caller left None.
        names: what these expressions and statements may name.
        recover: called with an exception, the listener that raised it, the clock, and a function that calls the
            listeners after it; True means that the exception goes on.
        first: statements that run before the listeners (the clock).
        finally_: statements that run after them (the settlement of requests).
    """
    scheduled = [(listener, listener.schedule) for listener in listeners if listener.schedule is not None]
    schedule = Due(point, clock, scheduled) if scheduled else None
    source, lines = _source(point, listeners, schedule, fill, first, finally_)

    def on_error(error: BaseException, due: Sequence[bool], arguments: dict[str, Any]) -> bool:
        raiser = failed(error)
        if raiser is None:
            return True
        others = _after(raiser, listeners, due)
        rest = compile_point(point, others, clock, run=run, fill=fill, names=names, recover=recover)
        return recover(error, raiser, clock, functools.partial(rest, **arguments))

    own = {"run": run, "_clock": clock, "_schedule": schedule, "_recover": on_error, LINES: lines}
    namespace: dict[str, Any] = {**names, **_objects(listeners, schedule), **own}
    exec(load_text(source, point.name), namespace)
    return namespace[point.name]  # type: ignore[no-any-return]


def _objects(listeners: Sequence[Listener], schedule: Due | None) -> dict[str, object]:
    """What the text calls, by the names that it has there."""
    return {
        **{f"_{i}": listener.call for i, listener in enumerate(listeners)},
        **{f"_asks_{i}": listener.asks for i, listener in enumerate(listeners)},
        **{f"_counter_{i}": counter for i, counter in enumerate(schedule.counters if schedule else ())},
    }


def _after(raiser: Listener, listeners: Sequence[Listener], due: Sequence[bool]) -> list[Listener]:
    """The listeners that this event still has to call: what is due at it was found before one of them failed."""
    scheduled = iter(due)
    at_event = [each for each in listeners if each.schedule is None or next(scheduled, False) or each is raiser]
    at = next(i for i, each in enumerate(at_event) if each is raiser)
    return [replace(each, schedule=None) for each in at_event[at + 1 :]]


def _source(
    point: Point,
    listeners: Sequence[Listener],
    schedule: Due | None,
    fill: dict[str, str],
    first: Sequence[str],
    finally_: Sequence[str],
) -> tuple[str, dict[int, Listener]]:
    wanted = {name for listener in listeners for name in (point.args if listener.rest else listener.wants)}
    head = [f"def {point.name}({', '.join(f'{a}=None' for a in point.args)}):"]
    head += [f"    {line}" for line in first]
    head += [f"    if {a} is None: {a} = {fill[a]}" for a in point.args if a in fill and a in wanted]
    head += ["    _due = ()"] if schedule else []
    calls, lines = _calls(point, listeners, schedule, start=len(head) + 2)
    if calls:
        arguments = ", ".join(f"{a!r}: {a}" for a in point.args)
        calls = ["    try:", *calls, "    except BaseException as _error:"]
        calls.append(f"        if _recover(_error, {'_due' if schedule else '()'}, {{{arguments}}}): raise")
    body = [*head, *calls, *(f"    {line}" for line in finally_)]
    if len(body) == 1:
        body.append("    pass")
    return "\n".join(body) + "\n", lines


def _calls(
    point: Point, listeners: Sequence[Listener], schedule: Due | None, start: int
) -> tuple[list[str], dict[int, Listener]]:
    """The lines that call the listeners, and which listener each of them calls."""
    always = [(_call(point, i, each), each) for i, each in enumerate(listeners) if each.schedule is None]
    body: list[tuple[str, Listener | None]] = []
    if schedule is None:
        body += [(f"        {line}", each) for line, each in always]
    else:
        scheduled = iter(range(len(listeners)))
        test = " or ".join(counter.test(f"_counter_{i}") for i, counter in enumerate(schedule.counters))
        body += [(f"        if {test}:", None), ("            _due = _schedule.now()", None)]
        for i, each in enumerate(listeners):
            when = "" if each.schedule is None else f"if _due[{next(scheduled)}]: "
            body.append((f"            {when}{_call(point, i, each)}", each))
        body += [("        else:", None)] if always else []
        body += [(f"            {line}", each) for line, each in always]
    lines = {start + n: listener for n, (_, listener) in enumerate(body) if listener is not None}
    return [line for line, _ in body], lines


def _call(point: Point, i: int, listener: Listener) -> str:
    arguments = list(listener.wants)
    if listener.rest:
        arguments += [f"{a}={a}" for a in ("run", *point.args) if a not in listener.wants]
    call = f"_{i}({', '.join(arguments)})"
    index = "batch" if point.unit == "batch" else "iter"
    return call if listener.asks is None else f"_asks_{i}(_clock.{index}) and {call}"


@functools.lru_cache(maxsize=512)
def load_text(source: str, name: str) -> CodeType:
    """Compile once per text; the text is kept so that tracebacks can show the line."""
    filename = f"<hookbus {name} {abs(hash(source)):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")
