"""Automatic nesting of before/after points in custom loops.

A custom loop may emit as little as `before_train_epoch` and `after_train_epoch`. The enclosing points are emitted
automatically: `before_train` before the first event of training, and `before_epoch` before `before_train_epoch`. An
epoch is closed when `run.epochs()` advances, when the next epoch starts, or when the loop ends, so that a validation in
the loop still belongs to its epoch. Points that the loop emits are never emitted twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from hookbus._events.call_stack import find_caller, format_place
from hookbus._events.codegen import Emitter, compile_emitter
from hookbus._events.points import Point
from hookbus._run.objects import describe_mode
from hookbus.errors import PointError

if TYPE_CHECKING:
    from hookbus._run.run import Run

Place = tuple[CodeType, int]
"""Code and line that emitted an event."""

EVALUATIONS = ("val", "test", "predict")
INNER = {"train": "epoch", "epoch": "train_epoch", **{name: f"{name}_epoch" for name in EVALUATIONS}}
OUTER = {inner: outer for outer, inner in INNER.items()}
TRAIN_ITER = ("before_train_iter", "after_forward", "after_backward", "after_train_iter")

NESTED_POINTS = frozenset(
    {"before_run", "after_run", "before_train", "after_train", "before_epoch", "after_epoch"}
    | {"before_train_epoch", "after_train_epoch", *TRAIN_ITER}
    | {f"{side}_{mode}{part}" for side in ("before", "after") for mode in EVALUATIONS for part in ("", "_epoch")}
)
"""Points with automatic nesting."""


class Nesting:
    """Open points of the run of a custom loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: list[str] = []  # outermost first: "train", "epoch", "train_epoch", "val", "val_epoch", ...
        # Open points that the loop did not emit, and whether the caller of `auto_open` closes them.
        self._automatic: dict[str, bool] = {}
        self._auto_closed: set[str] = set()  # points closed automatically, whose `after_*` the loop may still emit
        self._train_epoch_done = False  # whether the training part of the open epoch is complete
        self._in_turn = False  # whether the loop is in the body of `run.epochs()`
        # Place and iteration of the last `before_*` that the loop emitted.
        self._starts: dict[str, tuple[str, int]] = {}
        self._emits_before_iter = False
        self._last_place: Place | None = None  # of the last `before_train_iter` or `after_train_iter`

    @property
    def is_ending_epoch(self) -> bool:
        """Whether an epoch is complete, and the loop may still execute code that belongs to it."""
        clock = self._run.clock
        return clock.epoch_complete and not clock.epoch_open and (self._in_turn or "epoch" in self._open)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context manager for the body of `run.epochs()`, in which each point of an epoch is emitted once."""
        self._starts.clear()
        self._in_turn = True
        try:
            yield
        finally:
            self._in_turn = False

    def before_iteration(self) -> bool:
        """Open training before `before_train_iter`, and end a validation that the loop has abandoned.

        Returns:
            Whether training was not open.

        Raises:
            PointError: If an iteration is in progress.
        """
        is_first = self.open_training()
        if self._run.clock.iter_open:
            raise PointError(self._iteration_error("before_train_iter", "the iteration is still in progress"))
        if self._open[-1].startswith(EVALUATIONS):
            self._abandon_evaluations()
        if self._run.iteration_gap.is_watching:
            self._run.iteration_gap.check()
        self._emits_before_iter, self._last_place = True, _get_place()
        return is_first

    def after_iteration(self) -> bool:
        """Open training before `after_train_iter`.

        Returns:
            Whether training was not open.

        Raises:
            PointError: If no iteration is in progress, in a loop that emits `before_train_iter`.
        """
        is_first = self.open_training()
        if self._emits_before_iter and not self._run.clock.iter_open:
            raise PointError(self._iteration_error("after_train_iter", "the iteration has already ended"))
        self._last_place = _get_place()
        return is_first

    def before(self, point: str) -> bool:
        """Open and close the enclosing points before an event.

        Returns:
            Whether to emit the point; False if it was already emitted automatically.

        Raises:
            PointError: If the point was already emitted, or its `before_*` was not.
        """
        side, _, name = point.partition("_")
        if side == "before":
            return self._before_open(name)
        return self._before_close(name)

    def after(self, point: str) -> None:
        """Update the open points after an event."""
        side, _, name = point.partition("_")
        if name == "run":
            return
        if side == "before":
            self._mark_open(name)
            return
        self._mark_closed(name)
        outer = OUTER.get(name)
        # A loop that emits only the points of its validation loader has no later event at which to close the
        # validation.
        if outer in EVALUATIONS and self._automatic.get(outer) is False:
            self.close(outer)

    def open_training(self) -> bool:
        """Open training unless it is open: before its first event, or in a run that starts at its limit.

        Returns:
            Whether training was not open.

        Raises:
            PointError: If the run has ended, or only evaluates.
        """
        if "train" in self._open:
            return False
        self._check_running()
        self._check_mode()
        if self._open:
            self._abandon_evaluations()
        self.auto_open("train")
        return True

    def is_open(self, name: str) -> bool:
        """Return whether `before_<name>` was emitted and `after_<name>` was not."""
        return name in self._open

    def auto_open(self, name: str, *, caller_closes: bool = False, **arguments: Any) -> None:
        """Emit `before_<name>` for the loop.

        Args:
            name: Name of the point without `before_`.
            caller_closes: Whether the caller closes the point.
            arguments: Arguments of the event.
        """
        self._run.bus.fire(f"before_{name}", **arguments)
        self._mark_open(name)
        self._automatic[name] = caller_closes

    def close(self, name: str, **arguments: Any) -> bool:
        """Emit `after_<name>`, after closing all points that are open inside of it.

        Returns:
            Whether the point was open.
        """
        was_open = name in self._open
        while name in self._open:
            innermost = self._open[-1]
            self._run.bus.fire(f"after_{innermost}", **(arguments if innermost == name else {}))
            self._mark_closed(innermost)
            self._auto_closed.add(innermost)
        return was_open

    def close_all(self) -> None:
        """Close all open points at the end of the loop."""
        for name in (*EVALUATIONS, "train"):
            self.close(name)

    def discard(self, name: str) -> None:
        """Discard an open point and its loader after an exception, without emitting `after_*`."""
        for inner in (f"{name}_epoch", name):
            self._mark_closed(inner)

    # -- implementation ----------------------------------------------------------------------

    def _before_open(self, name: str) -> bool:
        if name == "run":
            return False
        self._check_running()
        if name in self._automatic:
            # Emitted automatically already. From here on the loop is responsible for `after_<name>`.
            del self._automatic[name]
            return False
        if name == "train":
            self._check_mode()
            return name not in self._open
        if name.startswith(EVALUATIONS):
            self.discard(name)  # still open: the loop has abandoned it
        self._check_repeated(name)
        if name in ("epoch", "train_epoch"):
            self.open_training()
            # A new epoch, or a second training part, implies that the previous epoch has ended.
            if name == "epoch" or self._train_epoch_done or "train_epoch" in self._open:
                self.close("epoch")
        if name in OUTER and OUTER[name] not in self._open:
            self.auto_open(OUTER[name])
        return True

    def _before_close(self, name: str) -> bool:
        if name == "run":
            self.close_all()  # `after_run` itself is emitted at the end of the run, when the outcome is known
            return False
        if name in self._open:
            if name in INNER:
                self.close(INNER[name])
            return True
        if name in self._auto_closed:
            return False
        if name in ("train", "epoch", "train_epoch") or name in self._starts:
            raise PointError(f"after_{name}: emitted without before_{name}. Emit before_{name} first.")
        return True

    def _check_running(self) -> None:
        """Raise a `PointError` if the run has ended: its hooks would receive the event after `cleanup`."""
        if self._run.outcome != "running":
            raise PointError(
                f"An event is emitted at {find_caller()}, but the run has ended. Emit the events of the loop inside of "
                "`with bus.run(...)`, or before run.close()."
            )

    def _check_mode(self) -> None:
        """Raise a `PointError` if the run only evaluates, and an event of training is emitted."""
        if self._run.mode != "train":
            raise PointError(f"An event of training is emitted at {find_caller()}, but {describe_mode(self._run.mode)}")

    def _check_repeated(self, name: str) -> None:
        """Record where the loop emits `before_<name>`, and raise a `PointError` if it is the second one of an epoch."""
        # It would count an epoch without iterations.
        place, iteration = find_caller(), self._run.iters_done
        first, first_iteration = self._starts.get(name, (place, -1))
        is_empty = name in self._open and first_iteration == iteration
        if name in ("epoch", "train_epoch") and (is_empty or (self._in_turn and name in self._starts)):
            clock = self._run.clock
            raise PointError(
                f"before_{name}: emitted at {first} and again at {place}, in epoch {clock.current('epoch')} after "
                f"{iteration} iterations. Emit it once per epoch."
            )
        self._starts[name] = place, iteration

    def _iteration_error(self, point: str, problem: str) -> str:
        """Return the message for a point that is emitted a second time in an iteration."""
        clock, last = self._run.clock, self._last_place
        other = "after_train_iter" if point == "before_train_iter" else "before_train_iter"
        earlier = "" if last is None else f" The previous event of the iteration was emitted at {format_place(*last)}."
        return (
            f"{point}: emitted at {find_caller()}, but {problem} (iteration {clock.current('iter')}, epoch "
            f"{clock.current('epoch')}).{earlier} Emit {other} in between, without outputs for an iteration that the "
            "loop skips."
        )

    def _abandon_evaluations(self) -> None:
        """End the validations that the loop has left without `after_*`, such as after an exception that it handles."""
        for name in EVALUATIONS:
            self.discard(name)
        self._run.validations.leave()

    def _mark_open(self, name: str) -> None:
        self._open.append(name)
        self._auto_closed.discard(name)
        if name == "epoch":
            self._train_epoch_done = False

    def _mark_closed(self, name: str) -> None:
        if name in self._open:
            self._open.remove(name)
        self._automatic.pop(name, None)
        self._train_epoch_done = name == "train_epoch" or (self._train_epoch_done and name != "epoch")


def _get_place() -> Place:
    """Return the code and the line of the loop that called `bus.emit`; in each iteration, so it must be fast."""
    # The frames of this function, of its caller, of the emitter and of `bus.emit` precede it.
    frame = sys._getframe(4)
    return frame.f_code, frame.f_lineno


# -- emitters ----------------------------------------------------------------------------------------


class StopLoop(KeyboardInterrupt):
    """Exception that exits a custom loop which continues after the run was interrupted."""


def wrap_emitter(point: Point, emitter: Emitter, run: Run) -> Emitter:
    """Return the function that `emit` calls for a point of a run.

    Args:
        point: The point.
        emitter: Function that emits the point without automatic nesting.
        run: Active run.
    """
    name = point.name
    if name in ("before_optimizer_step", "after_optimizer_step"):
        # The step hooks of the optimizer emit these points as well; each step must emit them once.
        return run.optimizer_events.manual_emitter(name, emitter)
    if name not in NESTED_POINTS or not run.auto_nesting:
        return emitter
    wrap = _iteration_emitter if name in TRAIN_ITER else _nested_emitter
    emitter = wrap(run, point, emitter)
    # The loop of a run that `bus.open` has begun belongs to a caller that may not expect the exception.
    leaves_loop = run.interrupted and run.closer is None and name in ("before_train_iter", "after_train_iter")
    return _stopping_emitter(name, emitter) if leaves_loop else emitter


def _nested_emitter(run: Run, point: Point, emitter: Emitter) -> Emitter:
    """Return an emitter that also emits the enclosing points that the loop omits."""
    nesting, calls, name, check = run.nesting, run.bus.calls, point.name, compile_emitter(point, None)
    call = calls.get(name)

    def emit(*arguments: Any) -> None:
        if nesting.before(name):
            # The listeners of the enclosing points may have registered hooks.
            current = calls.get(name)
            (emitter if current is call else compile_emitter(point, current))(*arguments)
            nesting.after(name)
        else:
            # Already emitted automatically: invalid arguments must raise nevertheless.
            check(*arguments)

    return emit


def _iteration_emitter(run: Run, point: Point, emitter: Emitter) -> Emitter:
    """Return an emitter that also checks the order of the events of an iteration."""
    nesting, calls = run.nesting, run.bus.calls
    begins = {"before_train_iter": nesting.before_iteration, "after_train_iter": nesting.after_iteration}
    begin = begins.get(point.name, nesting.open_training)

    def emit(*arguments: Any) -> None:
        # The listeners of `before_train` may have registered hooks.
        (compile_emitter(point, calls.get(point.name)) if begin() else emitter)(*arguments)

    return emit


def _stopping_emitter(point: str, emitter: Emitter) -> Emitter:
    """Return an emitter that leaves the loop of an interrupted run by `StopLoop`, before an iteration or after it."""

    def emit(*arguments: Any) -> None:
        # At the end of an iteration the weights may have changed, so that it must be counted before the loop is left.
        if point == "after_train_iter":
            emitter(*arguments)
        raise StopLoop

    return emit
