"""What is called, and how long does it take? Swapped into the tables while somebody looks; costs nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hookbus.bus import HookBus
    from hookbus.dispatch.compiling import Listener

__all__ = ["Spent", "timed", "traced"]

T = TypeVar("T")


class Spent(dict[tuple[str, str], int]):
    """Nanoseconds by (hook, point), or (hook, what was done for it after an event). Entries may be removed.

    What one hook does inside of another, such as a writer that is handed a record, counts for the inner one alone.

    Attributes:
        total: the sum of all times, those of removed entries included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self._inside = 0  # what was measured already inside of the call in progress

    def measure(self, key: tuple[str, str], call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call something for a hook, and add the time that it takes to an entry."""
        before, self._inside = self._inside, 0
        began = perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            elapsed = perf_counter_ns() - began
            own, self._inside = elapsed - self._inside, before + elapsed
            self[key] = self.get(key, 0) + own
            self.total += own


@contextmanager
def timed(bus: HookBus, *, without: Collection[str] = ()) -> Iterator[Spent]:
    """Measure the time that listeners take, and what is done after an event because a hook has asked for it.

    Args:
        bus: whose listeners are measured.
        without: instance names of hooks that are not.

    Yields:
        The times, growing while the context is open.
    """
    spent, outer = Spent(), bus.table.around_work

    def wrap(listener: Listener) -> Callable[..., Any]:
        call, key, measure = listener.call, (listener.hook, listener.point), spent.measure
        return call if listener.hook in without else lambda *args, **kwargs: measure(key, call, *args, **kwargs)

    def work_for(hook: str, what: str, work: Callable[[], Any]) -> Any:
        return spent.measure((hook, what), work if outer is None else partial(outer, hook, what, work))

    bus.table.around_work = work_for
    try:
        with bus.wrapped(wrap):
            yield spent
    finally:
        bus.table.around_work = outer


@contextmanager
def traced(bus: HookBus, report: Callable[[str, str], None]) -> Iterator[None]:
    """Call `report(hook, point)` before each listener is called."""

    def wrap(listener: Listener) -> Callable[..., Any]:
        call, hook, point = listener.call, listener.hook, listener.point

        def announce(*args: Any, **kwargs: Any) -> None:
            report(hook, point)
            call(*args, **kwargs)

        return announce

    with bus.wrapped(wrap):
        yield
