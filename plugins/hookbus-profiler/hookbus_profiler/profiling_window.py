"""Internal hook that measures the profiled iterations, and cycles of the torch profiler.

The hook is registered only while profiling, so other iterations have no overhead.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile

from hookbus import Hook, Run
from hookbus.errors import HookError
from hookbus.metrics import FlopCounter
from hookbus.testing import time_hooks
from hookbus_profiler.config import ScheduleConfig
from hookbus_profiler.time_breakdown import RESUMED, TimeBreakdown, Times, get_clock


def is_profiling() -> bool:
    """Return whether a torch profiler is active in this process, including one that waits or warms up.

    Takes about ten milliseconds.
    """
    # A second profiler would take over the data of the first one; one that records while another warms up causes a
    # segmentation fault (torch 2.13). torch reports only recording profilers, so all `profile` objects are inspected.
    profilers = [referrer for referrer in gc.get_referrers(profile) if type(referrer) is profile]
    return bool(torch._C._autograd._profiler_enabled()) or any(map(_is_active, profilers))


def _is_active(profiler: profile) -> bool:
    if torch.__version__ >= "2.13":  # a TorchVersion, which compares numbers
        return profiler.step_rec_fn is not None
    # Older torch leaves `step_rec_fn` set after `stop()`, so a profiler that waits looks like one that was stopped.
    trace = profiler.profiler
    return trace is not None and trace.kineto_results is None


class Cycle:
    """Warm-up and recording of one cycle of the torch profiler, started on construction.

    Args:
        warmup: Number of warm-up iterations.
        active: Number of recorded iterations.
        options: Keyword arguments of `torch.profiler.profile`.

    Attributes:
        profile: The torch profiler.
    """

    def __init__(self, warmup: int, active: int, **options: Any) -> None:
        self._warmup, self._length = warmup, warmup + active
        self._stopped = False
        self.profile = profile(schedule=self._action, **options)
        self.profile.start()

    @property
    def is_complete(self) -> bool:
        """Whether all iterations of the cycle are completed."""
        return self.profile.step_num >= self._length

    @property
    def recorded_iterations(self) -> int:
        """Number of recorded iterations."""
        return max(self.profile.step_num - self._warmup, 0)

    def stop(self) -> None:
        """Stop the profiler; a no-op if it is stopped."""
        if not self._stopped:
            self._stopped = True
            self.profile.stop()

    def _action(self, step: int) -> ProfilerAction:
        if step < self._warmup:
            return ProfilerAction.WARMUP
        if step >= self._length:
            return ProfilerAction.NONE
        return ProfilerAction.RECORD if step < self._length - 1 else ProfilerAction.RECORD_AND_SAVE


class ProfilingWindow(Hook):
    """Time every iteration, count the FLOPs of one, and trace the iterations of a plan.

    FLOPs are counted in the second iteration, or in the first one if the second one is traced.

    Args:
        name: Name of the hook.
        plan: Schedule of the traced iterations.
        length: Number of profiled iterations; None for no limit.
        device: Device of the model.
        counts_flops: Whether FLOPs are counted.
        options: Keyword arguments of `torch.profiler.profile`.
        deliver: Function called with each stopped cycle and its number.

    Attributes:
        iterations: Number of completed iterations.
        traced_iterations: Number of traced iterations, without warm-up.
        breakdown: Time breakdown of the iterations.
        flops: Floating-point operations of one iteration; None if not counted.
    """

    observer = True

    def __init__(
        self,
        name: str,
        plan: ScheduleConfig,
        length: int | None,
        device: Any,
        *,
        counts_flops: bool,
        options: dict[str, Any],
        deliver: Callable[[Cycle, int], None],
    ) -> None:
        super().__init__(name=name)
        self.iterations = self.traced_iterations = 0
        self.flops: int | None = None
        self.breakdown = TimeBreakdown(get_clock(device))
        self._plan, self._length, self._options, self._deliver = plan, length, options, deliver
        # Not the first iteration if possible: compiled functions run eagerly while counting, so compilation would move
        # to the next iteration, which is measured.
        self._flops_iteration = (0 if plan.is_traced(1) else 1) if counts_flops else None
        self._flop_counter: FlopCounter | None = None
        self._cycle: Cycle | None = None
        self._is_atypical = True  # the first iteration, the one whose FLOPs are counted, or the one after a trace
        self._exit = ExitStack()

    def open(self, run: Run) -> None:
        """Register the hook and start measuring.

        Raises:
            HookError: If another profiler is active in the process.
        """
        _ensure_no_active_profiler()
        self._spent = self._exit.enter_context(time_hooks(run.bus, without=(self.name,)))
        self._before_val = dict(self._spent)
        run.bus.register(self)
        self._exit.callback(run.bus.unregister, self)
        self._begin_cycle()
        self.breakdown.set_target(self._current_times)

    def close(self) -> None:
        """Stop measuring, unregister the hook and deliver the recorded iterations; a no-op if closed."""
        self._exit.close()
        try:
            self._stop_counting()
        finally:
            self._end_cycle()

    def describe_missing_iterations(self) -> str:
        """Return a message if fewer iterations were traced than planned, otherwise ""."""
        plan = self._plan
        planned = plan.active * max(plan.repeat, 1)
        if self.traced_iterations >= planned:
            return ""
        return (
            f"profiling ended after {_format_count(self.iterations)}, before its schedule was completed: "
            f"{self.traced_iterations} of {planned} planned iterations were traced. The schedule is {plan}. Train "
            "longer, or set a shorter `schedule`."
        )

    # -- events --------------------------------------------------------------------------------

    def before_train_epoch(self) -> None:
        """Mark the start of data loading."""
        self.breakdown.mark("before_train_epoch", self._spent.total)

    def before_train_iter(self) -> None:
        """Mark the end of data loading; start counting FLOPs if due."""
        self.breakdown.mark("before_train_iter", self._spent.total)
        if self.iterations == self._flops_iteration and self._flop_counter is None:
            self._flop_counter = FlopCounter()

    def after_forward(self) -> None:
        """Mark the end of the forward pass."""
        self.breakdown.mark("after_forward", self._spent.total)

    def after_backward(self) -> None:
        """Mark the end of the backward pass."""
        self.breakdown.mark("after_backward", self._spent.total)

    def before_optimizer_step(self) -> None:
        """Mark the start of the optimizer step."""
        self.breakdown.mark("before_optimizer_step", self._spent.total)

    def after_optimizer_step(self) -> None:
        """Mark the end of the optimizer step."""
        self.breakdown.mark("after_optimizer_step", self._spent.total)

    def after_train_iter(self) -> None:
        """Mark the end of the iteration; start or stop a cycle if due."""
        self.breakdown.mark("after_train_iter", self._spent.total)
        self.breakdown.end_iteration(self._spent)
        self.iterations += 1
        is_last = self.iterations == self._length
        if is_last or self._is_atypical or self._cycle is not None or self._plan.is_start(self.iterations):
            self._switch_cycle(is_last)

    def before_val(self) -> None:
        """Exclude the validation from the measurement."""
        self.breakdown.mark("before_val", self._spent.total)
        self._before_val = dict(self._spent)

    def after_val(self) -> None:
        """Resume the measurement; discard the time that hooks spent in the validation."""
        self._spent.clear()
        self._spent.update(self._before_val)
        self.breakdown.mark("after_val", self._spent.total)

    def after_run(self) -> None:
        """Stop measuring."""
        self.close()

    # -- FLOPs and traces ----------------------------------------------------------------------

    @property
    def _current_times(self) -> Times:
        """Times to which the current iteration is added."""
        if self._cycle is not None:
            return self.breakdown.traced
        return self.breakdown.atypical if self._is_atypical else self.breakdown.plain

    def _switch_cycle(self, is_last: bool) -> None:
        """Start or stop a cycle, whose time is excluded from the measurement; stop measuring after the last one."""
        was_traced = self._cycle is not None
        try:
            self._stop_counting()
            if self._cycle is not None:
                self._cycle.profile.step()
                if self._cycle.is_complete:
                    self._end_cycle()
        finally:
            # Also after an error, on a full disk for example: later iterations are measured correctly.
            if is_last:
                self.close()
            else:
                self._begin_cycle()
                self._is_atypical = was_traced or self.iterations == self._flops_iteration
                self.breakdown.set_target(self._current_times)
                self.breakdown.mark(RESUMED, self._spent.total)

    def _stop_counting(self) -> None:
        counter, self._flop_counter = self._flop_counter, None
        if counter is not None:
            self.flops = counter.stop()

    def _begin_cycle(self) -> None:
        if self._cycle is None and self._plan.is_start(self.iterations):
            _ensure_no_active_profiler()
            self._cycle = Cycle(self._plan.warmup, self._plan.active, **self._options)

    def _end_cycle(self) -> None:
        cycle, self._cycle = self._cycle, None
        if cycle is None:
            return
        cycle.stop()
        self.traced_iterations += cycle.recorded_iterations
        if cycle.recorded_iterations:
            self._deliver(cycle, self._plan.get_cycle(self.iterations - 1))


def _format_count(iterations: int) -> str:
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"


def _ensure_no_active_profiler() -> None:
    if is_profiling():
        raise HookError(
            "Another profiler is active in this process, and only one can be. Profiling is disabled for this run. Stop "
            "the other profiler or remove this hook."
        )
