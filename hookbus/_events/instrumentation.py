"""Measurement and tracing of listeners, active only inside a context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, TypeVar

from hookbus._events.bus import EventBus
from hookbus._events.ordering import Listener

T = TypeVar("T")


class HookTimings(dict[tuple[str, str], int]):
    """Execution time in nanoseconds by (hook, point) or (hook, requested operation).

    Entries may be removed. Times are exclusive: the time of a listener called within another one, such as that of a
    writer, is not counted twice.

    Attributes:
        total: Sum of all times, including those of removed entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._nested_time = 0  # time measured within the current call, to be subtracted from it

    def measure(self, key: tuple[str, str], call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function and add its execution time to an entry."""
        before, self._nested_time = self._nested_time, 0
        start = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            elapsed = perf_counter_ns() - start
            own, self._nested_time = elapsed - self._nested_time, before + elapsed
            self[key] = self.get(key, 0) + own
            # Not computed from the entries, which the caller may remove.
            self.total += own


@contextmanager
def time_hooks(bus: EventBus, *, without: Collection[str] = ()) -> Iterator[HookTimings]:
    """Measure the execution time of listeners, and of the operations that hooks have requested.

    Args:
        bus: Bus whose listeners are measured.
        without: Instance names of hooks to exclude.

    Yields:
        Times, updated while the context is active.
    """
    timings = HookTimings()

    def wrap(listener: Listener) -> Callable[..., Any]:
        # Bound once per listener instead of looked up in every call.
        call, key, measure = listener.call, (listener.hook, listener.point), timings.measure
        return call if listener.hook in without else lambda *args, **kwargs: measure(key, call, *args, **kwargs)

    def measure_work(hook: str, label: str, work: Callable[[], Any]) -> Any:
        return timings.measure((hook, label), work)

    with bus.wrap_work(measure_work), bus.wrap_listeners(wrap):
        yield timings


@contextmanager
def trace_hooks(bus: EventBus, report: Callable[[str, str], None]) -> Iterator[None]:
    """Call `report(hook, point)` before each call of a listener."""

    def wrap(listener: Listener) -> Callable[..., Any]:
        call, hook, point = listener.call, listener.hook, listener.point

        def report_and_call(*args: Any, **kwargs: Any) -> None:
            report(hook, point)
            call(*args, **kwargs)

        return report_and_call

    with bus.wrap_listeners(wrap):
        yield
