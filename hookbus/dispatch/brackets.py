"""Automatic nesting of before/after points in custom loops.

A custom loop may emit as little as `before_train_epoch` and `after_train_epoch`. The enclosing points are emitted
automatically: `before_train` before the first event of training, and `before_epoch` before `before_train_epoch`. An
epoch is closed when the next epoch starts, when the loop checks whether to stop, or when the loop ends, so that a
validation in the loop still belongs to its epoch. Points that the loop emits are never emitted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookbus.dispatch.emitting import Emitter, write_emitter
from hookbus.errors import PointError
from hookbus.points import Point

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["BRACKETED", "Brackets", "LoopLeft", "wrap_emitter"]

INSIDE = {"train": "epoch", "epoch": "train_epoch", "val": "val_epoch", "test": "test_epoch"}
TRAIN_ITER = ("before_train_iter", "after_forward", "after_backward", "after_train_iter")
EVALUATIONS = ("val", "test")

BRACKETED = frozenset(
    {"before_run", "after_run", "before_train", "after_train", "before_epoch", "after_epoch"}
    | {"before_train_epoch", "after_train_epoch", *TRAIN_ITER}
    | {f"{side}_{mode}{part}" for side in ("before", "after") for mode in EVALUATIONS for part in ("", "_epoch")}
)
"""Points with automatic nesting."""


class Brackets:
    """Open points of the run of a custom loop.

    Args:
        fire: Function that emits a point without automatic nesting.
    """

    def __init__(self, fire: Callable[..., object]) -> None:
        self._fire = fire
        self._open: list[str] = []  # outermost first: "train", "epoch", "train_epoch", "val", "val_epoch", ...
        self._automatic: set[str] = set()  # open points that the loop did not emit
        self._held: set[str] = set()  # open points that the caller of `open_automatically` closes
        self._closed_for_loop: set[str] = set()  # points closed automatically, whose `after_*` the loop may still emit
        self._trained = False  # whether the training part of the open epoch is complete

    @property
    def closing(self) -> bool:
        """Whether an epoch is complete except for its `after_epoch`."""
        return self._trained and "epoch" in self._automatic and self._open[-1:] == ["epoch"]

    def before(self, point: str) -> bool:
        """Open and close the enclosing points before an event.

        Returns:
            Whether to emit the point; False if it was already emitted automatically.
        """
        side, _, name = point.partition("_")
        if point in TRAIN_ITER:
            self._need("train")
            return True
        if side == "before":
            return self._opens(name)
        return self._closes(name)

    def after(self, point: str) -> None:
        """Update the open points after an event."""
        side, _, name = point.partition("_")
        if point in TRAIN_ITER or name == "run":
            return
        if side == "before":
            self._opened(name)
            return
        self._closed(name)
        outer = name.removesuffix("_epoch")
        # A loop that emits only the points of its validation loader has no later event at which to close the
        # validation.
        if name.endswith("_epoch") and outer in self._automatic - self._held and outer in EVALUATIONS:
            self.close(outer)

    def open_training(self) -> None:
        """Open training unless it is open, for a run that starts at its limit and emits no event of training."""
        self._need("train")

    def open_automatically(self, name: str, *, held: bool = False, **arguments: Any) -> None:
        """Emit `before_<name>` for the loop.

        Args:
            name: Name of the point without `before_`.
            held: Whether the caller closes the point.
            arguments: Arguments of the event.
        """
        self._fire(f"before_{name}", **arguments)
        self._opened(name)
        self._automatic.add(name)
        if held:
            self._held.add(name)

    def close(self, name: str, **arguments: Any) -> None:
        """Emit `after_<name>`, after closing all points that are open inside of it."""
        while name in self._open:
            innermost = self._open[-1]
            self._fire(f"after_{innermost}", **(arguments if innermost == name else {}))
            self._closed(innermost)
            self._closed_for_loop.add(innermost)

    def close_epoch(self) -> None:
        """Close the open epoch."""
        self.close("epoch")

    def close_all(self) -> None:
        """Close all open points at the end of the loop."""
        for name in (*EVALUATIONS, "train"):
            self.close(name)

    def forget(self, name: str) -> None:
        """Discard an open point and its loader after an exception, without emitting `after_*`."""
        for inner in (f"{name}_epoch", name):
            self._closed(inner)

    # -- implementation ----------------------------------------------------------------------

    def _opens(self, name: str) -> bool:
        if name == "run":
            return False
        if name in self._automatic:
            # Emitted automatically already. From here on the loop is responsible for `after_<name>`.
            self._automatic.discard(name)
            return False
        if name == "train":
            return name not in self._open
        if name in ("epoch", "train_epoch"):
            self._need("train")
            # A new epoch, or a second training part, implies that the previous epoch has ended.
            if name == "epoch" or self._trained or "train_epoch" in self._open:
                self.close("epoch")
        if name == "train_epoch":
            self._need("epoch")
        if name.endswith("_epoch") and (outer := name.removesuffix("_epoch")) in EVALUATIONS:
            self._need(outer)
        return True

    def _closes(self, name: str) -> bool:
        if name == "run":
            self.close_all()  # `after_run` itself is emitted at the end of the run, when the outcome is known
            return False
        if name in self._open:
            if name in INSIDE:
                self.close(INSIDE[name])
            return True
        if name in self._closed_for_loop:
            return False
        if name in ("train", "epoch", "train_epoch"):
            raise PointError(f"after_{name}: emitted without before_{name}. Emit before_{name} first.")
        return True

    def _need(self, name: str) -> None:
        if name not in self._open:
            self.open_automatically(name)

    def _opened(self, name: str) -> None:
        self._open.append(name)
        self._closed_for_loop.discard(name)
        if name == "epoch":
            self._trained = False

    def _closed(self, name: str) -> None:
        if name in self._open:
            self._open.remove(name)
        self._automatic.discard(name)
        self._held.discard(name)
        self._trained = name == "train_epoch" or (self._trained and name != "epoch")


# -- emitters ----------------------------------------------------------------------------------------


class LoopLeft(KeyboardInterrupt):
    """Exception that leaves a custom loop which continues after the run was interrupted."""


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
        return run.optimizer_events.explicit(name, emitter)
    if name not in BRACKETED or not run.keeps_brackets:
        return emitter
    emitter = _bracketed(run.brackets, point, emitter)
    return _leaving(name, emitter) if run.interrupted and name in ("before_train_iter", "after_train_iter") else emitter


def _bracketed(brackets: Brackets, point: Point, emitter: Emitter) -> Emitter:
    """Return an emitter that also emits the enclosing points that the loop omits."""
    name, check = point.name, write_emitter(point, None)

    def emit(*arguments: Any) -> None:
        if brackets.before(name):
            emitter(*arguments)
            brackets.after(name)
        else:
            # Already emitted automatically: invalid arguments must raise nevertheless.
            check(*arguments)

    return emit


def _leaving(point: str, emitter: Emitter) -> Emitter:
    """Return an emitter that leaves the loop of an interrupted run, before an iteration or after it.

    Raises:
        LoopLeft: When the emitter is called.
    """

    def emit(*arguments: Any) -> None:
        # At the end of an iteration the weights may have changed, so that it must be counted before the loop is left.
        if point == "after_train_iter":
            emitter(*arguments)
        raise LoopLeft

    return emit
