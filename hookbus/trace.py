"""What is called, and how long does it take? Swapped into the tables while somebody looks; costs nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus._dispatch import Listener
    from hookbus.bus import HookBus

__all__ = ["timed", "traced"]


@contextmanager
def timed(bus: HookBus) -> Iterator[dict[tuple[str, str], int]]:
    """Measure the time that listeners take.

    Yields:
        Nanoseconds by (hook, point), growing while the context is open.
    """
    spent: dict[tuple[str, str], int] = {}

    def wrap(listener: Listener) -> Callable[..., Any]:
        call, key = listener.call, (listener.hook, listener.point)

        def measure(*args: Any, **kwargs: Any) -> None:
            began = perf_counter_ns()
            try:
                call(*args, **kwargs)
            finally:
                spent[key] = spent.get(key, 0) + perf_counter_ns() - began

        return measure

    with bus.wrapped(wrap):
        yield spent


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
