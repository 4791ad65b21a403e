"""Data of a trace: the calls of the hooks of a run, its iterations and device synchronizations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hookbus.checkpoint.atomic_files import write_json
from hookbus.testing.chrome_trace import to_chrome_trace
from hookbus.testing.trace_summary import TraceSummary, summarize


class Span(NamedTuple):
    """One call of a hook.

    Attributes:
        hook: Instance name.
        point: Point, or description of the operation that the hook has requested, such as "a save".
        start, end: Times in nanoseconds of `time.perf_counter_ns`.
        thread: Number of the thread; 0 for the one that has started the trace.
    """

    hook: str
    point: str
    start: int
    end: int
    thread: int = 0


class Place(NamedTuple):
    """Place in the code of a hook.

    Attributes:
        file: Path of the file.
        line: Number of the line.
        text: Source text of the line, "" if it is unknown.
    """

    file: str
    line: int
    text: str


class Synchronization(NamedTuple):
    """One operation of a hook that waits for a device.

    Attributes:
        time: Time as in `Span`.
        hook, point: What was called, as in `Span`.
        place: Place in the code of the hook.
    """

    time: int
    hook: str
    point: str
    place: Place


@dataclass(slots=True)
class Iteration:
    """One training iteration, with times as in `Span`.

    Attributes:
        number: Number of the iteration, from 1.
        start, end: Start of the first listener and end of the last one.
        step_start, step_end: End of `before_train_iter` and start of `after_train_iter`, the training step between.
    """

    number: int
    start: int
    step_start: int = 0
    step_end: int = 0
    end: int = 0


@dataclass
class HookTrace:
    """Calls of the hooks of one rank.

    Attributes:
        rank: Rank of the process.
        spans: Calls, in the order of their ends.
        iterations: Complete training iterations.
        synchronizations: Device synchronizations of the hooks.
        epoch_ns: Difference between the time in nanoseconds since 1970 and that of the spans.
    """

    rank: int = 0
    spans: list[Span] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    synchronizations: list[Synchronization] = field(default_factory=list)
    epoch_ns: int = 0

    def summarize(self) -> TraceSummary:
        """Return the time per hook and point, in the iterations and outside of them."""
        return summarize(self)

    def write(self, path: str | Path) -> None:
        """Write the trace in the format of Chrome, which Perfetto opens.

        Args:
            path: Path of the JSON file.

        Raises:
            OSError: If the file cannot be written.
        """
        write_json(Path(path), to_chrome_trace([self]))
