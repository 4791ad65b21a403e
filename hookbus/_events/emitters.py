"""Functions behind `bus.emit`: argument checks and the call of the compiled function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hookbus._events.codegen import compile_source
from hookbus._events.points import ARGUMENT_ALIASES, Point
from hookbus.errors import PointError, suggest_names

EXPLICIT_ARGUMENTS = ("step", "batch_idx", "batch", "model", "outputs", "loss")
"""Arguments that `emit` names explicitly, because collecting them in **kwargs in every iteration would be slow."""

Emitter = Callable[..., None]
"""Function that `emit` calls for a point, with `EXPLICIT_ARGUMENTS` and a dict of all others, positionally."""


def compile_emitter(point: Point, call: Callable[..., None] | None) -> Emitter:
    """Generate a function that checks the arguments and emits the point.

    The function takes `EXPLICIT_ARGUMENTS` and a dict of all others, positionally.

    Args:
        point: The point.
        call: Compiled function, None if the point has no listeners.
    """
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
    """Return a function that emits a point, with positional or keyword arguments.

    Args:
        emit: `emit` of the bus.
        point: The point.
    """

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


def _reject(point: Point, **arguments: Any) -> None:
    """Raise for the first of some unknown arguments that was passed."""
    for name in (name for name, value in arguments.items() if value is not None):
        raise PointError(
            f"{point.name}: unknown argument {name!r}.{suggest_names(name, point.args)} Signature: {point.signature}."
        )
