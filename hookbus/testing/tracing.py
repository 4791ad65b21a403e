"""Trace of the hooks of a run: each call with its time, and the device synchronizations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from hookbus.hook import Hook
from hookbus.testing.spans import HookTrace, Iteration, Span

if TYPE_CHECKING:
    from hookbus._events.ordering import Listener
    from hookbus._run.run import Run
    from hookbus.bus import HookBus
    from hookbus.testing.synchronizations import SynchronizationCounter

OUTERMOST, INNERMOST = -(10**9), 10**9
"""Priorities of the listeners that mark the iterations."""

MARK = "hookbus.testing.record_trace"
"""Start of the names of these listeners."""


@contextmanager
def record_trace(bus: HookBus, *, without: Collection[str] = ()) -> Iterator[HookTrace]:
    """Record each call of a listener, each operation that hooks have requested, and the device synchronizations.

    The trace grows with each call: record a short part of a run. `hookbus trace` prints the trace of a run file.

    Args:
        bus: Bus whose hooks are recorded.
        without: Instance names of hooks to exclude.

    Yields:
        The trace, which is complete at the end of the context.
    """
    from hookbus.testing.synchronizations import SynchronizationCounter

    trace = HookTrace(bus.current.ranks.rank, epoch_ns=time.time_ns() - time.perf_counter_ns())
    counter = SynchronizationCounter(_Recorder.call.__code__, trace.synchronizations)
    recorder = _Recorder(trace, counter, without)
    with ExitStack() as stack:
        stack.enter_context(counter.active())
        stack.enter_context(_registered_marks(bus, trace))
        stack.enter_context(bus.wrap_work(recorder.call))
        stack.enter_context(bus.wrap_listeners(recorder.wrap))
        yield trace


class _Recorder:
    """Call hooks and append their spans to a trace."""

    def __init__(self, trace: HookTrace, counter: SynchronizationCounter, without: Collection[str]) -> None:
        self._spans, self._counter, self._without = trace.spans, counter, without
        self._threads = {threading.get_ident(): 0}

    def wrap(self, listener: Listener) -> Callable[..., Any]:
        """Return the function that replaces the one of a listener."""
        call, hook, point = listener.call, listener.hook, listener.point
        if hook in self._without or hook.startswith(MARK):
            return call
        return lambda *args, **kwargs: self.call(hook, point, lambda: call(*args, **kwargs))

    def call(self, hook: str, point: str, work: Callable[[], Any]) -> Any:
        """Call a function of a hook, and record the call."""
        self._counter.enter(hook, point)
        start = time.perf_counter_ns()
        try:
            return work()
        finally:
            end = time.perf_counter_ns()
            self._counter.exit()
            thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
            self._spans.append(Span(hook, point, start, end, thread))


class _IterationMark(Hook):
    """Record the times of iterations. One mark is the outermost and one the innermost hook at its points."""

    observer = True  # makes no requests, which would have to be synchronized across ranks

    def __init__(self, trace: HookTrace) -> None:
        super().__init__()
        self._iterations = trace.iterations

    def before_train_iter(self, run: Run) -> None:
        """Record the start of an iteration, then that of the training step."""
        now, number = time.perf_counter_ns(), run.iter + 1
        if not self._iterations or self._iterations[-1].number != number:
            self._iterations.append(Iteration(number, now))
        self._iterations[-1].step_start = now

    def after_train_iter(self, run: Run) -> None:
        """Record the end of the training step, then that of the iteration."""
        now = time.perf_counter_ns()
        # A trace may begin within an iteration.
        if self._iterations and (iteration := self._iterations[-1]).number == run.iter + 1:
            iteration.step_end, iteration.end = iteration.step_end or now, now


@contextmanager
def _registered_marks(bus: HookBus, trace: HookTrace) -> Iterator[None]:
    names = [f"{MARK}.{len(bus.hooks)}.{priority}" for priority in (OUTERMOST, INNERMOST)]
    for name, priority in zip(names, (OUTERMOST, INNERMOST), strict=True):
        bus.register(_IterationMark(trace), name, priority=priority)
    try:
        yield
    finally:
        for name in names:
            bus.unregister(name)
        trace.iterations[:] = [iteration for iteration in trace.iterations if iteration.end]
