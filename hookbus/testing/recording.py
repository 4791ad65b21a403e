"""A bus that writes down what happens on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookbus.bus import HookBus
from hookbus.dispatch.table import Order
from hookbus.dispatch.trace import traced
from hookbus.markers import hookimpl

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
        events: every point that was fired, with its arguments, in order.
        calls_made: every listener that was called, as (hook, point), in order; the recorder itself left out.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        self.events: list[Event] = []
        self.calls_made: list[tuple[str, str]] = []
        super().__init__(hooks, order=order)
        self._tracing = traced(self, self._note_call)
        self._tracing.__enter__()
        self.register(_Recorder(self.points, self.events), "recorder", priority=-(10**9))

    def _note_call(self, hook: str, point: str) -> None:
        if hook != "recorder":
            self.calls_made.append((hook, point))

    @property
    def fired(self) -> list[str]:
        """The points that were fired, in order."""
        return [event.point for event in self.events]

    def arguments(self, point: str) -> list[Mapping[str, Any]]:
        """The arguments of each firing of a point."""
        return [event.arguments for event in self.events if event.point == point]


class _Recorder:
    """Listens at every point; outermost, so that it sees each event as its first or last listener."""

    def __init__(self, points: Iterable[str], events: list[Event]) -> None:
        for point in points:
            setattr(self, point, hookimpl(_recording(point, events)))


def _recording(point: str, events: list[Event]) -> Callable[..., None]:
    def record(**arguments: Any) -> None:
        arguments.pop("run", None)
        events.append(Event(point, arguments))

    return record
