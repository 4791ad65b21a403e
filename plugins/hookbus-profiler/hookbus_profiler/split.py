"""Where does the time of an iteration go?

A row of marks cuts time into pieces; each piece belongs to the part of the iteration that lies between two points of a
loop. What hooks did in a piece is taken out of it, and shown under their names. So the parts add up to the whole, in
whatever order the hooks are called. To make a mark costs next to nothing; they are added up many iterations at a time,
when the device has reached them. Usable without hookbus.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hookbus_profiler.clocks import Clock

__all__ = ["OTHER", "PARTS", "RESUMED", "Split", "Times"]

PARTS = ("data", "forward", "backward", "forward and backward", "optimizer", "step")
"""The parts of an iteration; the fourth and the sixth for loops that do not tell more."""

OTHER = "other"
"""Everything else: the loop itself, and what lies between two epochs."""

RESUMED = "resumed"
"""In the place of a point: what passed since the mark before it does not count."""

_LEFT_OUT = ""
_BETWEEN: Mapping[tuple[str, str], str] = {
    ("after_train_iter", "before_train_iter"): "data",
    ("before_train_epoch", "before_train_iter"): "data",
    ("after_val", "before_train_iter"): "data",
    (RESUMED, "before_train_iter"): "data",
    ("before_train_iter", "after_forward"): "forward",
    ("after_forward", "after_backward"): "backward",
    ("after_forward", "before_optimizer_step"): "backward",
    ("before_train_iter", "before_optimizer_step"): "forward and backward",
    ("after_backward", "before_optimizer_step"): "optimizer",
    ("before_optimizer_step", "after_optimizer_step"): "optimizer",
    ("before_train_iter", "after_train_iter"): "step",
    ("after_forward", "after_train_iter"): "step",
    ("before_val", "after_val"): _LEFT_OUT,
    ("after_train_iter", RESUMED): _LEFT_OUT,
}
TOGETHER = 32
"""So many iterations are added up at a time."""
WAITING = 8
"""So many times as many may wait until the device has got there; older ones are forgotten."""


@dataclass(slots=True)
class Times:
    """Sums over iterations.

    Attributes:
        iterations: how many.
        parts: seconds by part, without what hooks did.
        hooks: seconds by hook.
        note: what makes these iterations different from others, for people.
    """

    note: str = ""
    iterations: int = 0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    hooks: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def seconds(self) -> float:
        """The whole."""
        return sum(self.parts.values()) + sum(self.hooks.values())


Mark = tuple[str, Any, int]
"""A point, when it was, and the nanoseconds that all hooks had taken until then."""
Spent = Mapping[tuple[str, str], int]
"""Nanoseconds so far by hook and by what it did."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Iterations that wait to be added up."""

    into: Times
    iterations: int
    marks: list[Mark]
    before: Spent
    spent: Spent


class Split:
    """Adds up the parts of iterations; those that are traced apart, which makes them slower, and those that are odd.

    Args:
        clock: by which the pieces are measured.

    Attributes:
        plain, traced, odd: the sums.
    """

    def __init__(self, clock: Clock) -> None:
        self.plain = Times()
        self.traced = Times("measured while they were traced, which makes them slower")
        self.odd = Times("the first, slower than others")
        self._clock, self._now = clock, clock.mark
        self._into: Times | None = None
        self._marks: list[Mark] = []
        self._ended_at = 0  # so many marks belong to complete iterations
        self._iterations = 0
        self._before: Spent = {}
        self._spent: Spent = {}
        self._waiting: deque[_Group] = deque(maxlen=WAITING)

    @property
    def times(self) -> Times:
        """Those of the iterations that are like most, as far as there are any; if not, of those that were traced."""
        return next((each for each in (self.plain, self.traced) if each.iterations), self.odd)

    def mark(self, point: str, hooks: int) -> None:
        """A piece ends, and the next one begins.

        Args:
            point: where the loop is.
            hooks: nanoseconds that all hooks together have taken so far.
        """
        self._marks.append((point, self._now(), hooks))

    def end_iteration(self, spent: Spent) -> None:
        """The pieces up to the last mark are an iteration.

        Args:
            spent: what hooks have taken so far; it may change afterwards.
        """
        self._ended_at, self._spent = len(self._marks), dict(spent)
        self._iterations += 1
        if self._iterations == TOGETHER:
            self._add_up()

    def count_for(self, into: Times) -> None:
        """From the end of the last iteration on, they count for these sums."""
        if into is not self._into:
            self._add_up()
            self._into = into

    def finish(self) -> None:
        """There are no more iterations: add up what is left. Waits for the device."""
        self._add_up()
        while self._waiting:
            self._clock.wait(self._waiting[0].marks[-1][1])
            self._settle()

    def _add_up(self) -> None:
        if self._into is not None and self._iterations:
            marks = self._marks[: self._ended_at]
            self._waiting.append(_Group(self._into, self._iterations, marks, self._before, self._spent))
        del self._marks[: max(self._ended_at - 1, 0)]  # the end of an iteration is where the next one begins
        self._ended_at, self._iterations, self._before = min(self._ended_at, 1), 0, self._spent
        self._settle()

    def _settle(self) -> None:
        """Add up what the device is done with."""
        while self._waiting and self._clock.is_past(self._waiting[0].marks[-1][1]):
            self._add(self._waiting.popleft())

    def _add(self, group: _Group) -> None:
        """A hook can only have held up as much of a piece as there is of it."""
        into, held_up = group.into, 0.0
        parts, between = into.parts, self._clock.between
        for (before, since, earlier), (point, now, hooks) in pairwise(group.marks):
            part = _BETWEEN.get((before, point), OTHER)
            if part is _LEFT_OUT:
                continue
            length = between(since, now)
            taken = min((hooks - earlier) / 1e9, length)
            parts[part] += length - taken
            held_up += taken
        own = {key: spent - group.before.get(key, 0) for key, spent in group.spent.items()}
        whole = sum(own.values())
        for (hook, _), nanoseconds in own.items():
            if nanoseconds:
                into.hooks[hook] += held_up * nanoseconds / whole
        into.iterations += group.iterations
