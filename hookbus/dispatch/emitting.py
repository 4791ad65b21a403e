"""What stands behind `bus.emit` for one point: the checks, the brackets, then the point's compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hookbus.dispatch.brackets import BRACKETED, Brackets
from hookbus.dispatch.compiling import load_text
from hookbus.errors import PointError, did_you_mean
from hookbus.lifecycle import SPELLINGS, Point

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["EXPLICIT", "LoopLeft", "bracketed", "emitter_for", "firing", "leaving", "write_emitter"]

EXPLICIT = ("step", "batch_idx", "batch", "model", "outputs", "loss")
"""The arguments that `emit` names explicitly: collecting them in **kwargs at every iteration would be slow."""

Emitter = Callable[..., None]


def emitter_for(point: Point, call: Callable[..., None] | None, run: Run) -> Emitter:
    """What `emit` calls for one point in one run: it checks the arguments, and keeps the brackets.

    Args:
        point: the point.
        call: the compiled function; None where nobody listens.
        run: the run in progress.
    """
    emitter, name = write_emitter(point, call), point.name
    if name in ("before_optimizer_step", "after_optimizer_step"):
        return run.optimizer_events.explicit(name, emitter)
    if name not in BRACKETED or not run.keeps_brackets:
        return emitter
    emitter = bracketed(run.brackets, point, emitter)
    return leaving(name, emitter) if run.interrupted and name in ("before_train_iter", "after_train_iter") else emitter


def write_emitter(point: Point, call: Callable[..., None] | None) -> Emitter:
    """Write a function of `EXPLICIT` and a dict of the rest that checks them and fires the point.

    Args:
        point: the point.
        call: the compiled function; None where nobody listens.
    """
    foreign = [name for name in EXPLICIT if name not in point.args]
    known = [name for name in EXPLICIT if name in point.args]
    lines = [f"def emit_{point.name}({', '.join(EXPLICIT)}, rest):"]
    if foreign:
        test = " or ".join(f"{name} is not None" for name in foreign)
        lines.append(f"    if {test}: refuse({', '.join(f'{name}={name}' for name in foreign)})")
    given = "".join(f"{name}={name}, " for name in known)
    spelled = [(other, name) for other, name in SPELLINGS.items() if name in known]
    lines += ["    if rest:"]
    lines += [f"        if {other!r} in rest: {name} = rest.pop({other!r})" for other, name in spelled]
    lines += ["        if not known.issuperset(rest): rest = check(rest)"]
    if call is not None:
        lines += [f"        call({given}**rest)", f"    else: call({given})"]
    namespace: dict[str, Any] = {"call": call, "refuse": _refusal(point), "check": _check(point)}
    namespace["known"] = frozenset(point.args)
    exec(load_text("\n".join(lines) + "\n", f"emit {point.name}"), namespace)
    return namespace[f"emit_{point.name}"]  # type: ignore[no-any-return]


def bracketed(brackets: Brackets, point: Point, emitter: Emitter) -> Emitter:
    """An emitter that opens and closes what has to be around its point; arguments are checked either way."""
    name, check = point.name, write_emitter(point, None)

    def emit(*arguments: Any) -> None:
        if brackets.before(name):
            emitter(*arguments)
            brackets.after(name)
        else:
            check(*arguments)

    return emit


def firing(emit: Callable[..., None], point: Point) -> Callable[..., None]:
    """A function that fires a point, with its arguments by name or in their order.

    Args:
        emit: that of the bus.
        point: the point.
    """

    def fire(*given: Any, **named: Any) -> None:
        if len(given) > len(point.args):
            raise PointError(f"{point.signature} has no place for {len(given)} arguments.")
        emit(point.name, **dict(zip(point.args, given, strict=False)), **named)

    fire.__name__ = fire.__qualname__ = point.name
    fire.__doc__ = point.doc or f"Fire {point.signature}."
    return fire


class LoopLeft(KeyboardInterrupt):
    """Ctrl-C has ended the run, and the loop went on: it is left where it stands."""


def leaving(point: str, emitter: Emitter) -> Emitter:
    """An emitter of an interrupted run, for a loop that goes on: it is left before an iteration, or after one.

    Raises:
        LoopLeft: when called.
    """

    def emit(*arguments: Any) -> None:
        if point == "after_train_iter":  # it was made, and has to be counted
            emitter(*arguments)
        raise LoopLeft

    return emit


def _refusal(point: Point) -> Callable[..., None]:
    def refuse(**given: Any) -> None:
        raise _wrong(point, [name for name, value in given.items() if value is not None])

    return refuse


def _check(point: Point) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def check(rest: dict[str, Any]) -> dict[str, Any]:
        named = {SPELLINGS.get(name, name): value for name, value in rest.items()}
        named.pop("run", None)
        wrong = [name for name in named if name not in point.args]
        if wrong:
            raise _wrong(point, wrong)
        return named

    return check


def _wrong(point: Point, names: Iterable[str]) -> PointError:
    first = next(iter(names))
    return PointError(
        f"{point.name} has no argument {first!r}.{did_you_mean(first, point.args)} The point is {point.signature}."
    )
