"""Generation of the functions that call the listeners of a point, and of those behind `bus.emit`.

`compile_point` generates a Python function that calls the sorted listeners one after the other with exactly the
arguments they take, so that an event has no overhead beyond these calls. The schedules of a point add one comparison
per unit, for any number of scheduled listeners. The mapping of source lines to listeners is stored in the globals of
the function, see `hookbus._events.call_stack`. `compile_emitter` generates a function that checks the arguments first.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

from hookbus._events.call_stack import LISTENER_LINES, failing_listener
from hookbus._events.checks import Implementation
from hookbus._events.markers import mark_spec
from hookbus._events.ordering import Listener
from hookbus._events.points import ARGUMENT_ALIASES, Counters, CounterView, Point
from hookbus._events.schedule_gate import ScheduleGate
from hookbus.errors import PointError, suggest_names


def compile_point(
    point: Point,
    listeners: Sequence[Listener],
    clock: Counters,
    counter_view: Callable[[Any, Point, Any], CounterView],
    run: object,
    default_arguments: dict[str, str],
    namespace: dict[str, object],
    handle_exception: Callable[[BaseException, Listener, Counters, Callable[[], None]], bool],
    prologue: Sequence[str] = (),
    epilogue: Sequence[str] = (),
) -> Callable[..., None]:
    """Compile the function that emits a point. It takes the arguments of the point as keywords.

    Args:
        point: The point.
        listeners: Listeners in execution order.
        clock: Counters of the run.
        counter_view: Function of counters, point and run that returns the view of the counters from the point.
        run: Value of the argument `run`.
        default_arguments: Expressions, by argument, that replace arguments of None.
        namespace: Globals for these expressions and statements.
        handle_exception: Exception handler, called with the exception, the listener that raised it, the clock, and a
            function that calls the remaining listeners. Returns whether the exception propagates.
        prologue: Statements before the listeners (updates of the clock).
        epilogue: Statements after the listeners (processing of requests).
    """
    scheduled = [(listener, listener.schedule) for listener in listeners if listener.schedule is not None]
    schedule = ScheduleGate(counter_view(clock, point, run), scheduled) if scheduled else None
    source, lines = _generate_source(point, listeners, schedule, default_arguments, prologue, epilogue)

    def on_error(error: BaseException, due: Sequence[bool], arguments: dict[str, Any]) -> bool:
        raiser = failing_listener(error)
        if raiser is None:  # raised by the generated code itself, such as KeyboardInterrupt between two calls
            return True
        # The remaining listeners are compiled on demand, so that events without exceptions have no overhead.
        others = _remaining_listeners(raiser, listeners, due)
        rest = compile_point(point, others, clock, counter_view, run, default_arguments, namespace, handle_exception)
        return handle_exception(error, raiser, clock, functools.partial(rest, **arguments))

    own = {"run": run, "_clock": clock, "_schedule": schedule, "_handle_exception": on_error, LISTENER_LINES: lines}
    own["_view"] = counter_view(clock, point, run)
    own |= {f"_{i}": listener.call for i, listener in enumerate(listeners)}
    own |= {f"_predicate_{i}": listener.predicate for i, listener in enumerate(listeners)}
    own |= {f"_counter_{i}": counter for i, counter in enumerate(schedule.counters if schedule else ())}
    module_globals: dict[str, Any] = {**namespace, **own}
    exec(compile_source(source, point.name), module_globals)
    return module_globals[point.name]  # type: ignore[no-any-return]


def use_spec_names(implementation: Implementation) -> Callable[..., Any]:
    """Return the function of an implementation with arguments that the spec of pluggy lists.

    pluggy compares the names in the code of the function with those of the spec.
    """
    parameters = inspect.signature(implementation.call).parameters
    if not ARGUMENT_ALIASES.keys() & parameters.keys():
        return implementation.call
    return define_function(implementation.target, implementation.argument_names, implementation.call)


def define_function(
    name: str, arguments: Sequence[str], call: Callable[..., Any], variable: str = "_call"
) -> Callable[..., Any]:
    """Define a function with certain names of arguments that calls another one, the value of a global variable."""
    result = f"{variable}({', '.join(arguments)})"
    if inspect.isgeneratorfunction(call):  # a wrapper of an action
        result = f"(yield from {result})"
    namespace: dict[str, Any] = {variable: call}
    exec(compile_source(f"def {name}({', '.join(arguments)}): return {result}\n", name), namespace)
    return namespace[name]  # type: ignore[no-any-return]


def generate_spec_class(arguments: Mapping[str, Sequence[str]], *, firstresult: bool = False) -> type:
    """Generate a spec class of pluggy for points or actions, with the arguments of each in addition to `run`.

    Its functions have no defaults, because pluggy does not pass arguments with defaults.
    """
    namespace: dict[str, Any] = {"mark": mark_spec(firstresult=firstresult)}
    lines = ["class Spec:", "    __slots__ = ()"]
    for name, names in arguments.items():
        lines += ["    @mark", f"    def {name}({', '.join(('self', 'run', *names))}): ..."]
    exec(compile_source("\n".join(lines) + "\n", "specs"), namespace)
    return namespace["Spec"]  # type: ignore[no-any-return]


def _remaining_listeners(raiser: Listener, listeners: Sequence[Listener], due: Sequence[bool]) -> list[Listener]:
    """Return the due listeners after the one that raised an exception.

    Schedules were evaluated before the first listener was called and must not be evaluated again.
    """
    scheduled = iter(due)
    called = [item for item in listeners if item.schedule is None or next(scheduled, False) or item is raiser]
    index = next(i for i, listener in enumerate(called) if listener is raiser)
    return [replace(listener, schedule=None) for listener in called[index + 1 :]]


def _generate_source(
    point: Point,
    listeners: Sequence[Listener],
    schedule: ScheduleGate | None,
    default_arguments: dict[str, str],
    prologue: Sequence[str],
    epilogue: Sequence[str],
) -> tuple[str, dict[int, Listener]]:
    used = {
        name for listener in listeners for name in (point.args if listener.accepts_kwargs else listener.argument_names)
    }
    head = [f"def {point.name}({', '.join(f'{a}=None' for a in point.args)}):"]
    head += [f"    {line}" for line in prologue]
    # Only for arguments that a listener takes: some defaults, such as `metrics`, are expensive to compute.
    defaults = {a: default_arguments[a] for a in point.args if a in default_arguments and a in used}
    head += [f"    if {a} is None: {a} = {default}" for a, default in defaults.items()]
    head += ["    _due = ()"] if schedule else []
    # Line numbers start at 1, and `try:` precedes the calls.
    calls, lines = _generate_calls(point, listeners, schedule, start=len(head) + 2)
    if calls:
        arguments = ", ".join(f"{a!r}: {a}" for a in point.args)
        calls = ["    try:", *calls, "    except BaseException as _error:"]
        calls.append(f"        if _handle_exception(_error, {'_due' if schedule else '()'}, {{{arguments}}}): raise")
    body = [*head, *calls, *(f"    {line}" for line in epilogue)]
    if len(body) == 1:
        body.append("    pass")
    return "\n".join(body) + "\n", lines


def _generate_calls(
    point: Point, listeners: Sequence[Listener], schedule: ScheduleGate | None, start: int
) -> tuple[list[str], dict[int, Listener]]:
    """Return the lines that call the listeners, and the listener called by each line."""
    always = [(_generate_call(point, i, item), item) for i, item in enumerate(listeners) if item.schedule is None]
    body: list[tuple[str, Listener | None]] = []
    if schedule is None:
        body += [(f"        {line}", listener) for line, listener in always]
    else:
        scheduled = iter(range(len(listeners)))
        # If no counter has reached its next number, only the unscheduled listeners are called and no schedule is
        # evaluated.
        test = " or ".join(counter.source(f"_counter_{i}") for i, counter in enumerate(schedule.counters))
        body += [(f"        if {test}:", None), ("            _due = _schedule.due_listeners()", None)]
        for i, listener in enumerate(listeners):
            condition = "" if listener.schedule is None else f"if _due[{next(scheduled)}]: "
            body.append((f"            {condition}{_generate_call(point, i, listener)}", listener))
        body += [("        else:", None)] if always else []
        body += [(f"            {line}", listener) for line, listener in always]
    lines = {start + n: called for n, (_, called) in enumerate(body) if called is not None}
    return [line for line, _ in body], lines


def _generate_call(point: Point, i: int, listener: Listener) -> str:
    arguments = list(listener.argument_names)
    if listener.accepts_kwargs:
        arguments += [f"{a}={a}" for a in ("run", *point.args) if a not in listener.argument_names]
    call = f"_{i}({', '.join(arguments)})"
    return call if listener.predicate is None else f"_predicate_{i}({_format_index(point)}) and {call}"


def _format_index(point: Point) -> str:
    """Return the expression of the index, from 0, in the unit of a point."""
    return f"_clock.{point.unit}" if point.unit in ("iter", "batch", "epoch") else "_view.current(None) - 1"


@functools.lru_cache(maxsize=512)
def compile_source(source: str, name: str) -> CodeType:
    """Compile source text, once per text, and register it with `linecache` so that tracebacks show its lines."""
    # The hash makes the name unique: linecache must not mix up the versions of a function.
    filename = f"<hookbus {name} {abs(hash(source)):x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")


EXPLICIT_ARGUMENTS = ("step", "batch_idx", "batch", "model", "outputs", "loss")
"""Arguments that `emit` names explicitly, because collecting them in **kwargs in every iteration would be slow."""

Emitter = Callable[..., None]
"""Function that `emit` calls for a point, with `EXPLICIT_ARGUMENTS` and a dict of all others, positionally."""


def compile_emitter(point: Point, call: Callable[..., None] | None) -> Emitter:
    """Generate the emitter of a point: it checks the arguments and calls the compiled function, if there is one."""
    unknown = [name for name in EXPLICIT_ARGUMENTS if name not in point.args]
    known = [name for name in EXPLICIT_ARGUMENTS if name in point.args]
    lines = [f"def emit_{point.name}({', '.join(EXPLICIT_ARGUMENTS)}, rest):"]
    if unknown:
        test = " or ".join(f"{name} is not None" for name in unknown)
        lines.append(f"    if {test}: reject({', '.join(f'{name}={name}' for name in unknown)})")
    keywords = "".join(f"{name}={name}, " for name in known)
    aliases = [(alias, name) for alias, name in ARGUMENT_ALIASES.items() if name in known]
    lines += ["    if rest:"]
    lines += [f"        if {alias!r} in rest: {name} = rest.pop({alias!r})" for alias, name in aliases]
    lines += ["        if not known.issuperset(rest): rest = check(rest)"]
    if call is not None:
        lines += [f"        call({keywords}**rest)", f"    else: call({keywords})"]
    namespace: dict[str, Any] = {
        "call": call,
        "reject": partial(_reject, point),
        "check": partial(_check_arguments, point),
        "known": frozenset(point.args),
    }
    exec(compile_source("\n".join(lines) + "\n", f"emit {point.name}"), namespace)
    return namespace[f"emit_{point.name}"]  # type: ignore[no-any-return]


def bind_point(emit: Callable[..., None], point: Point) -> Callable[..., None]:
    """Return a function that emits a point, with positional or keyword arguments."""

    def emit_point(*args: Any, **kwargs: Any) -> None:
        if len(args) > len(point.args):
            raise PointError(
                f"{point.signature}: expected at most {len(point.args)} positional arguments, got {len(args)}."
            )
        emit(point.name, **dict(zip(point.args, args, strict=False)), **kwargs)

    emit_point.__name__ = emit_point.__qualname__ = point.name
    emit_point.__doc__ = point.doc or f"Emit {point.signature}."
    return emit_point


def _check_arguments(point: Point, rest: dict[str, Any]) -> dict[str, Any]:
    """Return arguments under their canonical names, or raise if the point does not have one of them."""
    arguments = {ARGUMENT_ALIASES.get(name, name): value for name, value in rest.items()}
    arguments.pop("run", None)  # accepted, but listeners always receive the run of the bus
    _reject(point, **{name: True for name in arguments if name not in point.args})
    return arguments


def _reject(point: Point, /, **arguments: Any) -> None:
    """Raise for the first of some unknown arguments that was passed."""
    for name in (name for name, value in arguments.items() if value is not None):
        raise PointError(
            f"{point.name}: unknown argument {name!r}.{suggest_names(name, point.args)} Signature: {point.signature}."
        )
