"""Summary of a trace: time per hook and point, in the iterations and outside of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookbus.testing.spans import HookTrace, Span


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Calls of one hook at one point. Times in nanoseconds exclude those of other hooks called within.

    Attributes:
        hook: Instance name.
        point: Point, or description of a requested operation.
        calls: Number of calls.
        total_ns: Sum of all times.
        max_ns: Longest time.
        synchronizations: Number of device synchronizations.
    """

    hook: str
    point: str
    calls: int
    total_ns: int
    max_ns: int
    synchronizations: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Time of the hooks of one rank.

    Attributes:
        rank: Rank of the process.
        iterations: Number of measured iterations. The first one is not measured if there are others, because it is
            slower.
        iteration_ns: Time of all of them, with the time in which the loop waits for data.
        data_ns: The part in which the loop waits for data.
        in_iterations: Calls in these iterations, the longest sums first.
        outside: All other calls, likewise, and those in the first iteration.
    """

    rank: int = 0
    iterations: int = 0
    iteration_ns: int = 0
    data_ns: int = 0
    in_iterations: list[TraceRow] = field(default_factory=list)
    outside: list[TraceRow] = field(default_factory=list)

    @property
    def hooks_ns(self) -> int:
        """Time of all hooks in the measured iterations."""
        return sum(row.total_ns for row in self.in_iterations)

    @property
    def share(self) -> float:
        """Share of an iteration that the hooks take, 0 if no iteration was measured."""
        return self.hooks_ns / self.iteration_ns if self.iteration_ns else 0.0


def summarize(trace: HookTrace) -> TraceSummary:
    """Return the summary of a trace."""
    measured = trace.iterations[1:] or trace.iterations
    starts = [iteration.start for iteration in measured]

    def is_measured(time: int) -> bool:
        index = bisect_right(starts, time) - 1
        return index >= 0 and time < measured[index].end

    waits = sum(end - start for start, end in iter_data_waits(trace) if end >= measured[0].start)
    groups: dict[bool, dict[tuple[str, str], _Calls]] = {True: defaultdict(_Calls), False: defaultdict(_Calls)}
    for span, own in _iter_self_times(trace.spans):
        groups[is_measured(span.start)][span.hook, span.point].times.append(own)
    for event in trace.synchronizations:
        groups[is_measured(event.time)][event.hook, event.point].synchronizations += 1
    return TraceSummary(
        trace.rank,
        len(measured),
        sum(iteration.end - iteration.start for iteration in measured) + waits,
        waits,
        _build_rows(groups[True]),
        _build_rows(groups[False]),
    )


def iter_data_waits(trace: HookTrace) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each wait for data: between two iterations without another call in between."""
    starts = sorted(span.start for span in trace.spans if not span.thread)
    for earlier, later in pairwise(trace.iterations):
        is_idle = bisect_right(starts, earlier.end) == bisect_left(starts, later.start)
        if is_idle and later.number == earlier.number + 1:
            yield earlier.end, later.start


@dataclass(slots=True)
class _Calls:
    """Calls of one hook at one point.

    Attributes:
        times: Time of each call in nanoseconds.
        synchronizations: Number of device synchronizations.
    """

    times: list[int] = field(default_factory=list)
    synchronizations: int = 0


def _build_rows(groups: Mapping[tuple[str, str], _Calls]) -> list[TraceRow]:
    rows = [
        TraceRow(hook, point, len(calls.times), sum(calls.times), max(calls.times, default=0), calls.synchronizations)
        for (hook, point), calls in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.hook, row.point))


def _iter_self_times(spans: Sequence[Span]) -> Iterator[tuple[Span, int]]:
    """Yield each span with its time without that of the spans within it."""
    closed: dict[int, list[Span]] = defaultdict(list)
    for span in spans:  # in the order of their ends: inner ones precede the outer one
        earlier, inner = closed[span.thread], 0
        while earlier and earlier[-1].start >= span.start:
            nested = earlier.pop()
            inner += nested.end - nested.start
        earlier.append(span)
        yield span, span.end - span.start - inner
