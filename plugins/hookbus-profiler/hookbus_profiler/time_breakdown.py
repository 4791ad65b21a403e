"""Time breakdown of an iteration.

Marks at the points of a loop divide time into intervals. Each interval belongs to a part of the iteration, such as the
forward pass. The time that hooks spend in an interval is subtracted from the part and attributed to the hooks, so the
parts and hooks sum to the total time in any order of the hooks. Marks are summed up for many iterations at a time,
after the device has reached them. Usable without hookbus.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch


class HostClock:
    """Clock of the host: records marks, which are complete at once, and measures the time between them.

    Attributes:
        mark: Function that records a mark without blocking, and returns it.
    """

    mark: Callable[[], Any] = staticmethod(time.perf_counter)

    def is_complete(self, mark: Any) -> bool:
        """Return whether a mark and all earlier marks are complete, without blocking."""
        return True

    def wait(self, mark: Any) -> None:
        """Block until a mark is complete."""

    def elapsed(self, first: Any, second: Any) -> float:
        """Return the seconds between two complete marks."""
        return float(second - first)


class DeviceClock(HostClock):
    """Clock of a device: records events in the current stream of the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """Record an event after all work queued on the current stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def is_complete(self, mark: torch.Event) -> bool:
        """Return whether the device has reached the event."""
        return bool(mark.query())

    def wait(self, mark: torch.Event) -> None:
        """Block until the device has reached the event."""
        mark.synchronize()

    def elapsed(self, first: torch.Event, second: torch.Event) -> float:
        """Return the seconds between two events, measured by the device."""
        return float(first.elapsed_time(second)) / 1000  # `elapsed_time` returns milliseconds


def get_clock(device: torch.device) -> HostClock:
    """Return the clock for a device: events on CUDA, the host's clock otherwise."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()


PARTS = ("data", "forward", "backward", "forward and backward", "optimizer", "step")
"""Parts of an iteration. Loops that emit fewer points have `forward and backward` or `step` instead of finer parts."""

OTHER = "other"
"""Remaining time: the loop itself and the time between epochs."""

RESUMED = "resumed"
"""Pseudo point: the interval that it ends is excluded."""

_EXCLUDED = ""
_INTERVAL_PARTS: Mapping[tuple[str, str], str] = {
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
    ("before_val", "after_val"): _EXCLUDED,
    ("after_train_iter", RESUMED): _EXCLUDED,
}
GROUP_ITERATIONS = 32
"""Number of iterations summed up at a time."""
MAX_PENDING_GROUPS = 8
"""Maximum number of pending groups of `GROUP_ITERATIONS` iterations; older groups are discarded."""


@dataclass(slots=True)
class Times:
    """Times summed over iterations.

    Attributes:
        note: Remark for the report on how these iterations differ from others; "" if they do not.
        iterations: Number of iterations.
        parts: Seconds by part, excluding hooks.
        hooks: Seconds by hook.
    """

    note: str = ""
    iterations: int = 0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    hooks: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def seconds(self) -> float:
        """Total time in seconds."""
        return sum(self.parts.values()) + sum(self.hooks.values())


Mark = tuple[str, Any, int]
"""Point, mark of the clock, and total time of all hooks up to then in nanoseconds."""
NanosecondsByPoint = Mapping[tuple[str, str], int]
"""Total nanoseconds by hook and point."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Iterations whose marks the device has not reached yet."""

    times: Times
    iterations: int
    marks: list[Mark]
    spent_before: NanosecondsByPoint
    spent: NanosecondsByPoint


class TimeBreakdown:
    """Sum up the parts of iterations, separately for plain, traced and atypical iterations.

    Attributes:
        plain: Times of ordinary iterations.
        traced: Times of traced iterations, which are slower.
        atypical: Times of atypical iterations, such as the first one.
    """

    def __init__(self, clock: HostClock) -> None:
        self.plain = Times()
        self.traced = Times("slowed down by tracing")
        self.atypical = Times("including warm-up")
        self._clock, self._mark = clock, clock.mark
        self._target: Times | None = None
        self._marks: list[Mark] = []
        self._complete_marks = 0  # number of marks that belong to completed iterations
        self._iterations = 0
        self._spent_before: NanosecondsByPoint = {}
        self._spent: NanosecondsByPoint = {}
        # Bounded: a host far ahead of the device would otherwise allocate events without limit.
        self._pending: deque[_Group] = deque(maxlen=MAX_PENDING_GROUPS)

    @property
    def times(self) -> Times:
        """Times of the plain iterations; of the traced or else the atypical ones if there are none."""
        return next((times for times in (self.plain, self.traced) if times.iterations), self.atypical)

    def mark(self, point: str, hooks: int) -> None:
        """End an interval and start the next one.

        Args:
            point: Current point of the loop.
            hooks: Total time of all hooks so far, in nanoseconds.
        """
        self._marks.append((point, self._mark(), hooks))

    def end_iteration(self, spent: NanosecondsByPoint) -> None:
        """End an iteration at the last mark.

        Args:
            spent: Time of each hook so far, in nanoseconds; copied.
        """
        self._complete_marks, self._spent = len(self._marks), dict(spent)
        self._iterations += 1
        if self._iterations == GROUP_ITERATIONS:
            self._close_group()

    def set_target(self, times: Times) -> None:
        """Add the iterations after the last completed one to the given times."""
        if times is not self._target:
            self._close_group()
            self._target = times

    def finish(self) -> None:
        """Sum up the remaining iterations. Blocks until the device has reached their marks."""
        self._close_group()
        while self._pending:
            self._clock.wait(self._pending[0].marks[-1][1])
            self._process_pending()

    def _close_group(self) -> None:
        if self._target is not None and self._iterations:
            marks = self._marks[: self._complete_marks]
            self._pending.append(_Group(self._target, self._iterations, marks, self._spent_before, self._spent))
        del self._marks[: max(self._complete_marks - 1, 0)]  # the end of an iteration is the start of the next one
        self._complete_marks, self._iterations, self._spent_before = min(self._complete_marks, 1), 0, self._spent
        self._process_pending()

    def _process_pending(self) -> None:
        """Sum up the groups whose marks the device has reached."""
        while self._pending and self._clock.is_complete(self._pending[0].marks[-1][1]):
            self._add_group(self._pending.popleft())

    def _add_group(self, group: _Group) -> None:
        """Add the times of a group to its sums."""
        times, hook_seconds = group.times, 0.0
        parts, elapsed = times.parts, self._clock.elapsed
        for (before, since, hooks_before), (point, now, hooks) in pairwise(group.marks):
            part = _INTERVAL_PARTS.get((before, point), OTHER)
            if part is _EXCLUDED:
                continue
            length = elapsed(since, now)
            # Hooks are timed on the host and intervals on the device. Hooks that run while the device is busy do not
            # delay it, so they are charged with at most the length of the interval.
            in_hooks = min((hooks - hooks_before) / 1e9, length)
            parts[part] += length - in_hooks
            hook_seconds += in_hooks
        own = {key: spent - group.spent_before.get(key, 0) for key, spent in group.spent.items()}
        total = sum(own.values())
        for (hook, _), nanoseconds in own.items():
            if nanoseconds:
                times.hooks[hook] += hook_seconds * nanoseconds / total
        times.iterations += group.iterations
