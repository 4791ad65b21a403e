"""Where does the time of an iteration go?

A row of marks cuts time into pieces; each piece belongs to the part of the iteration that lies between two points of a
loop. What hooks did in a piece is taken out of it, and shown under their names. So the parts add up to the whole, in
whatever order the hooks are called. Usable without hookbus.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookbus_profiler.clocks import Clock

__all__ = ["OTHER", "PARTS", "Split", "Times"]

PARTS = ("data", "forward", "backward", "forward and backward", "optimizer", "step")
"""The parts of an iteration; the fourth and the sixth for loops that do not tell more."""

OTHER = "other"
"""Everything else: the loop itself, and what lies between two epochs."""

_BETWEEN: Mapping[tuple[str, str], str] = {
    ("after_train_iter", "before_train_iter"): "data",
    ("before_train_epoch", "before_train_iter"): "data",
    ("after_val", "before_train_iter"): "data",
    ("before_train_iter", "after_forward"): "forward",
    ("after_forward", "after_backward"): "backward",
    ("after_forward", "before_optimizer_step"): "backward",
    ("before_train_iter", "before_optimizer_step"): "forward and backward",
    ("after_backward", "before_optimizer_step"): "optimizer",
    ("before_optimizer_step", "after_optimizer_step"): "optimizer",
    ("before_train_iter", "after_train_iter"): "step",
    ("after_forward", "after_train_iter"): "step",
}
_LEFT_OUT = ("before_val", "after_val")
WAITING = 64
"""So many iterations may wait until the device has got there; older ones are forgotten."""


@dataclass(slots=True)
class Times:
    """Sums over iterations.

    Attributes:
        iterations: how many.
        parts: seconds by part, without what hooks did.
        hooks: seconds by hook.
    """

    iterations: int = 0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    hooks: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def seconds(self) -> float:
        """The whole."""
        return sum(self.parts.values()) + sum(self.hooks.values())


Piece = tuple[str, Any, Any, float]


class Split:
    """Adds up the parts of iterations, those that are traced apart: tracing makes everything slower.

    Args:
        clock: by which the pieces are measured.

    Attributes:
        plain, traced: the sums.
    """

    def __init__(self, clock: Clock) -> None:
        self.plain, self.traced = Times(), Times()
        self._clock = clock
        self._last: tuple[str, Any, int] | None = None
        self._pieces: list[Piece] = []
        self._waiting: deque[tuple[Times, list[Piece], dict[str, int]]] = deque(maxlen=WAITING)

    @property
    def times(self) -> Times:
        """Those of the iterations that were not traced, as far as there are any."""
        return self.plain if self.plain.iterations else self.traced

    def mark(self, point: str, hooks: int) -> None:
        """A piece ends, and the next one begins.

        Args:
            point: where the loop is.
            hooks: nanoseconds that all hooks together have taken so far.
        """
        now = self._clock.mark()
        if self._last is not None and (self._last[0], point) != _LEFT_OUT:
            before, since, earlier = self._last
            part = _BETWEEN.get((before, point), OTHER)
            self._pieces.append((part, since, now, (hooks - earlier) / 1e9))
        self._last = (point, now, hooks)

    def end_iteration(self, hooks: Mapping[str, int], into: Times | None) -> None:
        """The pieces since the last iteration are one iteration.

        Args:
            hooks: nanoseconds by hook since then.
            into: the sums that it counts for; None to leave it out.
        """
        if into is not None:
            self._waiting.append((into, self._pieces, dict(hooks)))
        self._pieces = []
        self.settle()

    def settle(self) -> None:
        """Add up the iterations that the device is done with. Does not wait for others."""
        while self._waiting:
            into, pieces, hooks = self._waiting[0]
            lengths = [self._clock.between(first, second) for _, first, second, _ in pieces]
            if None in lengths:
                return
            self._waiting.popleft()
            _add(into, zip(pieces, (length or 0.0 for length in lengths), strict=True), hooks)


def _add(into: Times, pieces: Iterable[tuple[Piece, float]], hooks: Mapping[str, int]) -> None:
    """Add one iteration. A hook can only have held up as much of a piece as there is of it."""
    held_up = 0.0
    for (part, _, _, in_hooks), length in pieces:
        taken = min(in_hooks, length)
        into.parts[part] += length - taken
        held_up += taken
    spent = sum(hooks.values())
    for name, nanoseconds in hooks.items():
        into.hooks[name] += held_up * nanoseconds / spent if spent else 0.0
    into.iterations += 1
