"""Traces of hooks in the format of Chrome, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hookbus.testing.trace_summary import iter_data_waits

if TYPE_CHECKING:
    from hookbus.testing.spans import HookTrace

THREAD_NAME = "training"


def to_chrome_trace(traces: Sequence[HookTrace]) -> dict[str, Any]:
    """Return the traces of all ranks as a JSON document of the Trace Event Format: one process per rank.

    Args:
        traces: The trace of each rank.
    """
    starts = [trace.epoch_ns + time for trace in traces for time in _iter_starts(trace)]
    origin = min(starts, default=0)
    events = [event for trace in traces for event in _iter_events(trace, origin - trace.epoch_ns)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _iter_starts(trace: HookTrace) -> Iterator[int]:
    yield from (span.start for span in trace.spans)
    yield from (iteration.start for iteration in trace.iterations)


def _iter_events(trace: HookTrace, origin: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank, with times in microseconds after `origin`."""

    def build(name: str, category: str, start: int, end: int, thread: int = 0, **arguments: Any) -> dict[str, Any]:
        times = {"ts": (start - origin) / 1000, "dur": (end - start) / 1000}
        event = {"name": name, "cat": category, "ph": "X", **times, "pid": trace.rank, "tid": thread}
        return {**event, "args": arguments} if arguments else event

    yield _build_metadata("process_name", trace.rank, 0, f"rank {trace.rank}")
    for thread in sorted({span.thread for span in trace.spans} | {0}):
        yield _build_metadata("thread_name", trace.rank, thread, f"thread {thread}" if thread else THREAD_NAME)
    for start, end in iter_data_waits(trace):
        yield build("data", "loop", start, end)
    for iteration in trace.iterations:
        yield build(f"iteration {iteration.number}", "loop", iteration.start, iteration.end)
        yield build("step", "loop", iteration.step_start, iteration.step_end)
    for span in trace.spans:
        yield build(f"{span.hook}: {span.point}", "hook", *span[2:], hook=span.hook, point=span.point)
    for event in trace.synchronizations:
        place = f"{event.place.file}:{event.place.line}"
        arguments = {"hook": event.hook, "point": event.point, "place": place, "code": event.place.text}
        instant = {"name": "synchronization", "cat": "synchronization", "ph": "i", "s": "t", "args": arguments}
        yield {**instant, "ts": (event.time - origin) / 1000, "pid": trace.rank, "tid": 0}


def _build_metadata(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
