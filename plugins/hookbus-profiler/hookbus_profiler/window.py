"""What is done from the first to the last iteration that is profiled. Opened once, closed once, whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hookbus import HookBus
from hookbus.errors import HookError
from hookbus.trace import timed
from hookbus_profiler.clocks import clock_for
from hookbus_profiler.flops import FlopCount
from hookbus_profiler.plan import Plan
from hookbus_profiler.session import Cycle, is_profiling
from hookbus_profiler.split import Split

__all__ = ["Window"]


class Window:
    """Times every iteration, counts the arithmetic of the first, traces those that the plan says.

    Args:
        bus: whose hooks are timed.
        plan: which iterations are traced.
        device: where the model is.
        counts_flops: whether arithmetic is counted.
        options: for `torch.profiler.profile`.
        deliver: called with a finished cycle and its number.

    Attributes:
        iterations: how many are done.
        split: where their time went.
        flops: operations of the first iteration; None where they were not counted.

    Raises:
        HookError: another profiler is on.
    """

    def __init__(
        self,
        bus: HookBus,
        plan: Plan,
        device: Any,
        *,
        counts_flops: bool,
        options: dict[str, Any],
        deliver: Callable[[Cycle, int], None],
    ) -> None:
        _refuse_second()
        self.iterations = 0
        self.flops: int | None = None
        self.split = Split(clock_for(device))
        self._plan, self._options, self._deliver = plan, options, deliver
        self._wants_flops = counts_flops
        self._counting: FlopCount | None = None
        self._cycle: Cycle | None = None
        self._was_traced = False
        self._exit = ExitStack()
        self._spent = self._exit.enter_context(timed(bus))
        self.mark("before_train")
        self._begin_cycle()

    def mark(self, point: str) -> None:
        """The loop is at a point."""
        self.split.mark(point, self._spent.total)

    def begin_iteration(self) -> None:
        """The batch is there."""
        self.mark("before_train_iter")
        if self._wants_flops and not self.iterations:
            self._counting = FlopCount()

    def end_iteration(self, *, is_last: bool) -> None:
        """The iteration is done; a cycle may end, and the next one begin.

        Args:
            is_last: whether it is the last one that is profiled.
        """
        self.mark("after_train_iter")
        self._end_times()
        self.iterations += 1
        if self._cycle is not None:
            self._cycle.step()
            if self._cycle.is_complete:
                self._end_cycle()
        if not is_last:
            self._begin_cycle()

    def close(self) -> None:
        """Switch everything off. What was recorded until now is delivered. May be called twice."""
        self._exit.close()
        try:
            self._stop_counting()
        finally:
            self._end_cycle()
        self.split.settle()

    def _end_times(self) -> None:
        """The first iteration, and the one after a trace was written, are like no other: they are left out."""
        self._stop_counting()
        hooks = Counter[str]()
        for (hook, _), nanoseconds in self._spent.items():
            hooks[hook] += nanoseconds
        self._spent.clear()
        is_odd = self.iterations == 0 or self._was_traced
        into = self.split.traced if self._cycle is not None else None if is_odd else self.split.plain
        self.split.end_iteration(hooks, into)
        self._was_traced = self._cycle is not None

    def _stop_counting(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            self.flops = counting.stop()

    def _begin_cycle(self) -> None:
        if self._cycle is None and self._plan.begins_at(self.iterations):
            _refuse_second()
            self._cycle = Cycle(self._plan.warmup, self._plan.active, **self._options)

    def _end_cycle(self) -> None:
        cycle, self._cycle = self._cycle, None
        if cycle is None:
            return
        cycle.stop()
        if cycle.recorded:
            self._deliver(cycle, self._plan.cycle_of(self.iterations - 1))


def _refuse_second() -> None:
    if is_profiling():
        raise HookError(
            "Another profiler is on in this process, and two would take each other's data away, so this one stays off. "
            "Switch the other one off, or leave this hook out."
        )
