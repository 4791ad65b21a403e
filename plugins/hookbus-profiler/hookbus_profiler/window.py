"""What is done from the first to the last iteration that is profiled: a hook that is there for so long and no longer.

So the iterations before and after cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hookbus import Hook, HookBus
from hookbus.dispatch.trace import timed
from hookbus.errors import HookError
from hookbus_profiler.clocks import clock_for
from hookbus_profiler.flops import FlopCount
from hookbus_profiler.plan import Plan
from hookbus_profiler.session import Cycle, is_profiling
from hookbus_profiler.split import RESUMED, Split, Times

__all__ = ["Window"]


class Window(Hook):
    """Times every iteration, counts the arithmetic of one, traces those that the plan says.

    It is opened once, and closed once, whatever happens. Arithmetic is counted in the second iteration, since what is
    compiled in the first one should not fall into the third; in the first one where the second one is traced.

    Args:
        name: the instance name.
        plan: which iterations are traced.
        length: how many iterations are profiled; None for no end.
        device: where the model is.
        counts_flops: whether arithmetic is counted.
        options: for `torch.profiler.profile`.
        deliver: called with a finished cycle and its number.

    Attributes:
        iterations: how many are done.
        split: where their time went.
        flops: operations of one iteration; None where they were not counted.
    """

    observer = True

    def __init__(
        self,
        name: str,
        plan: Plan,
        length: int | None,
        device: Any,
        *,
        counts_flops: bool,
        options: dict[str, Any],
        deliver: Callable[[Cycle, int], None],
    ) -> None:
        super().__init__(name=name)
        self.iterations = 0
        self.flops: int | None = None
        self.split = Split(clock_for(device))
        self._plan, self._length, self._options, self._deliver = plan, length, options, deliver
        self._counted = (0 if plan.traces(1) else 1) if counts_flops else None
        self._counting: FlopCount | None = None
        self._cycle: Cycle | None = None
        self._is_odd = True  # the first iteration, that whose arithmetic is counted, the one after a trace
        self._exit = ExitStack()

    def open(self, bus: HookBus) -> None:
        """Begin to watch.

        Args:
            bus: whose hooks are timed.

        Raises:
            HookError: another profiler is on.
        """
        _refuse_second()
        self._spent = self._exit.enter_context(timed(bus, without=(self.name,)))
        self._before_val = dict(self._spent)
        bus.register(self)
        self._exit.callback(bus.unregister, self)
        self._begin_cycle()
        self.split.count_for(self._sums)

    def close(self) -> None:
        """Switch everything off. What was recorded until now is delivered. May be called twice."""
        self._exit.close()
        try:
            self._stop_counting()
        finally:
            self._end_cycle()

    # -- the points of an iteration ------------------------------------------------------------

    def before_train_epoch(self) -> None:
        """From here on data is fetched."""
        self.split.mark("before_train_epoch", self._spent.total)

    def before_train_iter(self) -> None:
        """The batch is there."""
        self.split.mark("before_train_iter", self._spent.total)
        if self.iterations == self._counted and self._counting is None:
            self._counting = FlopCount()

    def after_forward(self) -> None:
        """The loss is there."""
        self.split.mark("after_forward", self._spent.total)

    def after_backward(self) -> None:
        """The gradients are there."""
        self.split.mark("after_backward", self._spent.total)

    def before_optimizer_step(self) -> None:
        """The update begins."""
        self.split.mark("before_optimizer_step", self._spent.total)

    def after_optimizer_step(self) -> None:
        """The update is done."""
        self.split.mark("after_optimizer_step", self._spent.total)

    def after_train_iter(self) -> None:
        """The iteration is done; a cycle may end, and the next one begin."""
        self.split.mark("after_train_iter", self._spent.total)
        self.split.end_iteration(self._spent)
        self.iterations += 1
        if self.iterations == self._length:
            self.close()
        elif self._is_odd or self._cycle is not None or self._plan.begins_at(self.iterations):
            self._turn()

    def before_val(self) -> None:
        """What follows is no part of an iteration."""
        self.split.mark("before_val", self._spent.total)
        self._before_val = dict(self._spent)

    def after_val(self) -> None:
        """Training goes on; what hooks did for the validation is forgotten."""
        self._spent.clear()
        self._spent.update(self._before_val)
        self.split.mark("after_val", self._spent.total)

    def after_run(self) -> None:
        """There are no more iterations."""
        self.close()

    # -- the arithmetic and the traces ---------------------------------------------------------

    @property
    def _sums(self) -> Times:
        """Those that the iteration in progress counts for."""
        if self._cycle is not None:
            return self.split.traced
        return self.split.odd if self._is_odd else self.split.plain

    def _turn(self) -> None:
        """A cycle may end, and the next one begin. What that takes is no part of an iteration."""
        was_traced = self._cycle is not None
        try:
            self._stop_counting()
            self._step_cycle()
        finally:
            self._begin_cycle()
            self._is_odd = was_traced or self.iterations == self._counted
            self.split.count_for(self._sums)
            self.split.mark(RESUMED, self._spent.total)

    def _stop_counting(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            self.flops = counting.stop()

    def _begin_cycle(self) -> None:
        if self._cycle is None and self._plan.begins_at(self.iterations):
            _refuse_second()
            self._cycle = Cycle(self._plan.warmup, self._plan.active, **self._options)

    def _step_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle.step()
            if self._cycle.is_complete:
                self._end_cycle()

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
