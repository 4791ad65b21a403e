"""Automatic nesting of before/after points in custom loops.

A custom loop may emit as little as `before_train_epoch` and `after_train_epoch`. The enclosing points are emitted
automatically: `before_train` before the first event of training, and `before_epoch` before `before_train_epoch`. An
epoch is closed when the next epoch starts, when the loop checks whether to stop, or when the loop ends, so that a
validation in the loop still belongs to its epoch. Points that the loop emits are never emitted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookbus._events.emitters import Emitter, compile_emitter
from hookbus._events.points import Point
from hookbus.errors import PointError

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["NESTED_POINTS", "Nesting", "StopLoop", "wrap_emitter"]

INNER = {"train": "epoch", "epoch": "train_epoch", "val": "val_epoch", "test": "test_epoch"}
TRAIN_ITER = ("before_train_iter", "after_forward", "after_backward", "after_train_iter")
EVALUATIONS = ("val", "test")

NESTED_POINTS = frozenset(
    {"before_run", "after_run", "before_train", "after_train", "before_epoch", "after_epoch"}
    | {"before_train_epoch", "after_train_epoch", *TRAIN_ITER}
    | {f"{side}_{mode}{part}" for side in ("before", "after") for mode in EVALUATIONS for part in ("", "_epoch")}
)
"""Points with automatic nesting."""


class Nesting:
    """Open points of the run of a custom loop.

    Args:
        fire: Function that emits a point without automatic nesting.
    """

    def __init__(self, fire: Callable[..., object]) -> None:
        self._fire = fire
        self._open: list[str] = []  # outermost first: "train", "epoch", "train_epoch", "val", "val_epoch", ...
        self._automatic: set[str] = set()  # open points that the loop did not emit
        self._caller_managed: set[str] = set()  # open points that the caller of `auto_open` closes
        self._auto_closed: set[str] = set()  # points closed automatically, whose `after_*` the loop may still emit
        self._train_epoch_done = False  # whether the training part of the open epoch is complete

    @property
    def epoch_end_pending(self) -> bool:
        """Whether an epoch is complete except for its `after_epoch`."""
        return self._train_epoch_done and "epoch" in self._automatic and self._open[-1:] == ["epoch"]

    def before(self, point: str) -> bool:
        """Open and close the enclosing points before an event.

        Returns:
            Whether to emit the point; False if it was already emitted automatically.
        """
        side, _, name = point.partition("_")
        if point in TRAIN_ITER:
            self._ensure_open("train")
            return True
        if side == "before":
            return self._before_open(name)
        return self._before_close(name)

    def after(self, point: str) -> None:
        """Update the open points after an event."""
        side, _, name = point.partition("_")
        if point in TRAIN_ITER or name == "run":
            return
        if side == "before":
            self._mark_open(name)
            return
        self._mark_closed(name)
        outer = name.removesuffix("_epoch")
        # A loop that emits only the points of its validation loader has no later event at which to close the
        # validation.
        if name.endswith("_epoch") and outer in self._automatic - self._caller_managed and outer in EVALUATIONS:
            self.close(outer)

    def open_training(self) -> None:
        """Open training unless it is open, for a run that starts at its limit and emits no event of training."""
        self._ensure_open("train")

    def auto_open(self, name: str, *, caller_closes: bool = False, **arguments: Any) -> None:
        """Emit `before_<name>` for the loop.

        Args:
            name: Name of the point without `before_`.
            caller_closes: Whether the caller closes the point.
            arguments: Arguments of the event.
        """
        self._fire(f"before_{name}", **arguments)
        self._mark_open(name)
        self._automatic.add(name)
        if caller_closes:
            self._caller_managed.add(name)

    def close(self, name: str, **arguments: Any) -> None:
        """Emit `after_<name>`, after closing all points that are open inside of it."""
        while name in self._open:
            innermost = self._open[-1]
            self._fire(f"after_{innermost}", **(arguments if innermost == name else {}))
            self._mark_closed(innermost)
            self._auto_closed.add(innermost)

    def close_epoch(self) -> None:
        """Close the open epoch."""
        self.close("epoch")

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
        if name in self._automatic:
            # Emitted automatically already. From here on the loop is responsible for `after_<name>`.
            self._automatic.discard(name)
            return False
        if name == "train":
            return name not in self._open
        if name in ("epoch", "train_epoch"):
            self._ensure_open("train")
            # A new epoch, or a second training part, implies that the previous epoch has ended.
            if name == "epoch" or self._train_epoch_done or "train_epoch" in self._open:
                self.close("epoch")
        if name == "train_epoch":
            self._ensure_open("epoch")
        if name.endswith("_epoch") and (outer := name.removesuffix("_epoch")) in EVALUATIONS:
            self._ensure_open(outer)
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
        if name in ("train", "epoch", "train_epoch"):
            raise PointError(f"after_{name}: emitted without before_{name}. Emit before_{name} first.")
        return True

    def _ensure_open(self, name: str) -> None:
        if name not in self._open:
            self.auto_open(name)

    def _mark_open(self, name: str) -> None:
        self._open.append(name)
        self._auto_closed.discard(name)
        if name == "epoch":
            self._train_epoch_done = False

    def _mark_closed(self, name: str) -> None:
        if name in self._open:
            self._open.remove(name)
        self._automatic.discard(name)
        self._caller_managed.discard(name)
        self._train_epoch_done = name == "train_epoch" or (self._train_epoch_done and name != "epoch")


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
    emitter = _nested_emitter(run.nesting, point, emitter)
    return (
        _stopping_emitter(name, emitter)
        if run.interrupted and name in ("before_train_iter", "after_train_iter")
        else emitter
    )


def _nested_emitter(nesting: Nesting, point: Point, emitter: Emitter) -> Emitter:
    """Return an emitter that also emits the enclosing points that the loop omits."""
    name, check = point.name, compile_emitter(point, None)

    def emit(*arguments: Any) -> None:
        if nesting.before(name):
            emitter(*arguments)
            nesting.after(name)
        else:
            # Already emitted automatically: invalid arguments must raise nevertheless.
            check(*arguments)

    return emit


def _stopping_emitter(point: str, emitter: Emitter) -> Emitter:
    """Return an emitter that leaves the loop of an interrupted run, before an iteration or after it.

    Raises:
        StopLoop: When the emitter is called.
    """

    def emit(*arguments: Any) -> None:
        # At the end of an iteration the weights may have changed, so that it must be counted before the loop is left.
        if point == "after_train_iter":
            emitter(*arguments)
        raise StopLoop

    return emit
