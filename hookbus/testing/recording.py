"""A bus that writes down what happens on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookbus.bus import HookBus
from hookbus.dispatch.table import Order
from hookbus.dispatch.trace import traced
from hookbus.markers import hookimpl
from hookbus.points import Point

__all__ = ["Event", "RecordingBus"]


@dataclass(frozen=True, slots=True)
class Event:
    """One firing of a point.

    Attributes:
        point: its name.
        arguments: what listeners could ask for, `run` left out.
    """

    point: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class RecordingBus(HookBus):
    """A bus that writes down what happens on it.

    Attributes:
        events: every point that was fired, those of packages included, with its arguments, in order.
        calls_made: every listener that was called, as (hook, point), in order; the recorder itself left out.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        self.events: list[Event] = []
        self.calls_made: list[tuple[str, str]] = []
        self._recorders: set[str] = set()
        super().__init__(hooks, order=order)
        self._tracing = traced(self, self._note_call)
        self._tracing.__enter__()
        self._record(self.points)

    def _add(self, points: Mapping[str, Point]) -> None:
        super()._add(points)
        if self._recorders:
            self._record(points)

    def _record(self, points: Iterable[str]) -> None:
        name = "_".join(["recorder", *points]) if self._recorders else "recorder"
        self._recorders.add(name)
        self.register(_Recorder(points, self.events), name, priority=-(10**9))

    def _note_call(self, hook: str, point: str) -> None:
        if hook not in self._recorders:
            self.calls_made.append((hook, point))

    @property
    def fired(self) -> list[str]:
        """The points that were fired, in order."""
        return [event.point for event in self.events]

    def arguments(self, point: str) -> list[Mapping[str, Any]]:
        """The arguments of each firing of a point."""
        return [event.arguments for event in self.events if event.point == point]


class _Recorder:
    """Listens at points; outermost, so that it sees each event as its first or last listener."""

    def __init__(self, points: Iterable[str], events: list[Event]) -> None:
        for point in points:
            setattr(self, point, hookimpl(_recording(point, events)))


def _recording(point: str, events: list[Event]) -> Callable[..., None]:
    def record(**arguments: Any) -> None:
        arguments.pop("run", None)
        events.append(Event(point, arguments))

    return record
