"""Pairs balance: what a custom loop leaves out is opened and closed for it.

A loop of one's own may emit as little as `before_train_epoch` and `after_train_epoch`. The brackets around these
are kept here: `before_train` opens before the first event of training, `before_epoch` before a bare
`before_train_epoch`; the epoch is closed when the next one begins, when the loop asks whether to stop, or when it is
left, so that a validation that the loop makes by itself still belongs to its epoch. What the loop emits itself is
never emitted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookbus.errors import PointError

__all__ = ["BRACKETED", "Brackets"]

INSIDE = {"train": "epoch", "epoch": "train_epoch", "val": "val_epoch", "test": "test_epoch"}
TRAIN_ITER = ("before_train_iter", "after_forward", "after_backward", "after_train_iter")
EVALUATIONS = ("val", "test")

BRACKETED = frozenset(
    {"before_run", "after_run", "before_train", "after_train", "before_epoch", "after_epoch"}
    | {"before_train_epoch", "after_train_epoch", *TRAIN_ITER}
    | {f"{side}_{mode}{part}" for side in ("before", "after") for mode in EVALUATIONS for part in ("", "_epoch")}
)
"""The points whose brackets are kept."""


class Brackets:
    """What is open in the run of a custom loop.

    Args:
        fire: emits a point without looking at brackets.
    """

    def __init__(self, fire: Callable[..., object]) -> None:
        self._fire = fire
        self._open: list[str] = []  # of "train", "epoch", "train_epoch", "val", "val_epoch", ...
        self._automatic: set[str] = set()  # those of the open ones that the loop did not open itself
        self._held: set[str] = set()  # those that are closed by whoever opened them
        self._closed_for_loop: set[str] = set()  # those that were closed before the loop did
        self._trained = False  # whether the open epoch has had its training part

    @property
    def closing(self) -> bool:
        """Whether an epoch is over but for its `after_epoch`."""
        return self._trained and "epoch" in self._automatic and self._open[-1:] == ["epoch"]

    def before(self, point: str) -> bool:
        """Open and close what must be open and closed at this point; False if the point was fired already."""
        side, _, name = point.partition("_")
        if point in TRAIN_ITER:
            self._need("train")
            return True
        if side == "before":
            return self._opens(name)
        return self._closes(name)

    def after(self, point: str) -> None:
        """The point was fired."""
        side, _, name = point.partition("_")
        if point in TRAIN_ITER or name == "run":
            return
        if side == "before":
            self._opened(name)
            return
        self._closed(name)
        outer = name.removesuffix("_epoch")
        if name.endswith("_epoch") and outer in self._automatic - self._held and outer in EVALUATIONS:
            self.close(outer)

    def open_training(self) -> None:
        """A training begins in which nothing is left to do, unless the loop has begun it."""
        self._need("train")

    def open_automatically(self, name: str, *, held: bool = False, **arguments: Any) -> None:
        """Fire `before_<name>` on the loop's behalf; `held` means that the caller closes it as well."""
        self._fire(f"before_{name}", **arguments)
        self._opened(name)
        self._automatic.add(name)
        if held:
            self._held.add(name)

    def close(self, name: str, **arguments: Any) -> None:
        """Fire `after_<name>`, and those of everything inside it that is open."""
        while name in self._open:
            innermost = self._open[-1]
            self._fire(f"after_{innermost}", **(arguments if innermost == name else {}))
            self._closed(innermost)
            self._closed_for_loop.add(innermost)

    def close_epoch(self) -> None:
        """An epoch that is over but for its end gets it."""
        self.close("epoch")

    def close_all(self) -> None:
        """The loop is left."""
        for name in (*EVALUATIONS, "train"):
            self.close(name)

    def forget(self, name: str) -> None:
        """What was left open inside, by an exception, is not closed any more."""
        for inner in (f"{name}_epoch", name):
            self._closed(inner)

    # -- inside ------------------------------------------------------------------------------

    def _opens(self, name: str) -> bool:
        if name == "run":
            return False
        if name in self._automatic:
            self._automatic.discard(name)
            return False
        if name == "train":
            return name not in self._open
        if name in ("epoch", "train_epoch"):
            self._need("train")
            if name == "epoch" or self._trained or "train_epoch" in self._open:
                self.close("epoch")
        if name == "train_epoch":
            self._need("epoch")
        if name.endswith("_epoch") and (outer := name.removesuffix("_epoch")) in EVALUATIONS:
            self._need(outer)
        return True

    def _closes(self, name: str) -> bool:
        if name == "run":
            self.close_all()  # after_run itself is fired on leaving, when the outcome is known
            return False
        if name in self._open:
            if name in INSIDE:
                self.close(INSIDE[name])
            return True
        if name in self._closed_for_loop:
            return False
        if name in ("train", "epoch", "train_epoch"):
            raise PointError(f"after_{name} was emitted, but no before_{name} before it: emit that first.")
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
