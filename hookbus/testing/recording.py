"""A bus that records its events and listener calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookbus._events.instrumentation import trace_hooks
from hookbus._events.markers import hookimpl
from hookbus._events.points import Point
from hookbus._events.table import Order
from hookbus._run.results import LogSource
from hookbus._run.run import Run
from hookbus.bus import HookBus


@dataclass(frozen=True, slots=True)
class Event:
    """One emission of a point.

    Attributes:
        point: Name of the point.
        arguments: Arguments that listeners could receive, without `run`.
        source: Source of the values of `log_scalars`, see `Run.log_source`.
    """

    point: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: LogSource | None = None


class RecordingBus(HookBus):
    """A bus that records its events and listener calls.

    Args:
        hooks: Hooks to register. Default: none.
        order: Order of hooks by priority, see `HookBus`. Default: "nested".

    Attributes:
        events: Emitted points, including those of packages, with their arguments, in order.
        calls_made: Called listeners as (hook, point), in order, without the recorder.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        self.events: list[Event] = []
        self.calls_made: list[tuple[str, str]] = []
        self._recorders: set[str] = set()
        super().__init__(hooks, order=order)
        self._tracing = trace_hooks(self, self._record_call)
        self._tracing.__enter__()
        self._record(self.points)

    def _add(self, points: Mapping[str, Point]) -> None:
        super()._add(points)
        if self._recorders:  # the constructor of the base class adds points before the first recorder exists
            self._record(points)

    def _record(self, points: Iterable[str]) -> None:
        name = "_".join(["recorder", *points]) if self._recorders else "recorder"
        self._recorders.add(name)
        self.register(_Recorder(points, self.events), name, priority=-(10**9))

    def _record_call(self, hook: str, point: str) -> None:
        if hook not in self._recorders:
            self.calls_made.append((hook, point))

    @property
    def emitted_points(self) -> list[str]:
        """Emitted points, in order, without the `log_scalars` of training records and results."""
        return [event.point for event in self.events if event.source is None]

    def get_arguments(self, point: str) -> list[Mapping[str, Any]]:
        """Return the arguments of each emission of a point; of `log_scalars`, those without a source only.

        Args:
            point: Name of the point.
        """
        return [event.arguments for event in self.events if event.point == point and event.source is None]


class _Recorder:
    """Listener at a set of points, registered outermost to record each event as its first or last listener."""

    def __init__(self, points: Iterable[str], events: list[Event]) -> None:
        for point in points:
            setattr(self, point, hookimpl(_make_recorder(point, events)))


def _make_recorder(point: str, events: list[Event]) -> Callable[..., None]:
    def record(run: Run, **arguments: Any) -> None:
        source = run.log_source(arguments["values"]) if point == "log_scalars" else None
        events.append(Event(point, arguments, source))

    return record
