import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookbus_profiler.time_breakdown import (
    GROUP_ITERATIONS,
    MAX_PENDING_GROUPS,
    OTHER,
    RESUMED,
    DeviceClock,
    HostClock,
    TimeBreakdown,
    get_clock,
)

POINTS = ["before_train_iter", "after_forward", "after_backward", "before_optimizer_step", "after_optimizer_step"]
SECOND = 10**9


class ManualClock:
    """Clock set by the test, whose marks are complete only if `reached` is true."""

    def __init__(self):
        self.now, self.reached, self.waits = 0.0, True, 0

    def mark(self):
        return self.now

    def is_complete(self, mark):
        return self.reached

    def wait(self, mark):
        self.waits += 1
        self.reached = True

    def elapsed(self, first, second):
        assert self.reached
        return second - first


class Loop:
    """Loop that marks points after given numbers of seconds, partly spent in hooks."""

    def __init__(self):
        self.clock = ManualClock()
        self.breakdown = TimeBreakdown(self.clock)
        self.breakdown.set_target(self.breakdown.plain)
        self.spent = {}

    def mark(self, point, seconds=0, **hooks):
        for name, duration in hooks.items():
            self.spent[name, "point"] = self.spent.get((name, "point"), 0) + int(duration * SECOND)
        self.clock.now += seconds
        self.breakdown.mark(point, sum(self.spent.values()))

    def end_iteration(self, seconds=0, **hooks):
        self.mark("after_train_iter", seconds, **hooks)
        self.breakdown.end_iteration(self.spent)

    def iteration(self):
        """Mark one iteration: one second of data loading and one second of work."""
        self.mark("before_train_iter", 1)
        self.end_iteration(1)

    @property
    def times(self):
        self.breakdown.finish()
        return self.breakdown.plain


@pytest.fixture
def loop():
    return Loop()


def test_each_interval_is_added_to_its_part(loop):
    loop.mark("before_train_epoch")
    for point, seconds in zip(POINTS, [5, 1, 2, 0.25, 0.5], strict=True):
        loop.mark(point, seconds)
    loop.end_iteration(0.125)
    assert dict(loop.times.parts) == {"data": 5, "forward": 1, "backward": 2, "optimizer": 0.75, OTHER: 0.125}
    assert (loop.times.seconds, loop.times.iterations) == (8.875, 1)


@pytest.mark.parametrize(
    ("points", "parts"),
    [
        (["before_optimizer_step", "after_optimizer_step"], {"forward and backward": 1, "optimizer": 1, OTHER: 1}),
        ([], {"step": 1}),
        (["after_forward"], {"forward": 1, "step": 1}),
        (["after_forward", "before_optimizer_step"], {"forward": 1, "backward": 1, OTHER: 1}),
    ],
)
def test_loop_with_fewer_points_has_coarser_parts(loop, points, parts):
    loop.mark("before_train_iter", 1)
    for point in points:
        loop.mark(point, 1)
    loop.end_iteration(1)
    assert dict(loop.times.parts) == parts


def test_validation_is_excluded_from_data_loading(loop):
    loop.end_iteration()
    loop.mark("before_val", 1)
    loop.mark("after_val", 50)
    loop.mark("before_train_iter", 2)
    loop.end_iteration(4)
    assert dict(loop.times.parts) == {OTHER: 1, "data": 2, "step": 4}


def test_profiler_work_between_iterations_is_excluded(loop):
    loop.end_iteration()
    loop.mark(RESUMED, 50)
    loop.mark("before_train_iter", 2)
    loop.end_iteration(4)
    assert dict(loop.times.parts) == {"data": 2, "step": 4}


def test_time_of_hooks_is_subtracted_from_the_parts(loop):
    loop.end_iteration()
    loop.mark("before_train_iter", 5, logger=3)
    loop.end_iteration(4, ema=1)
    assert dict(loop.times.parts) == {"data": 2, "step": 3}
    assert dict(loop.times.hooks) == {"logger": 3, "ema": 1}


def test_time_of_hooks_is_limited_to_the_interval_of_the_device(loop):
    loop.end_iteration()  # then the device is idle for one second, while hooks take three on the host
    loop.mark("before_train_iter", 1, logger=3)
    loop.end_iteration(4)
    assert dict(loop.times.hooks) == {"logger": 1}
    assert dict(loop.times.parts) == {"data": 0, "step": 4}


def test_time_of_hooks_is_added_to_the_group_of_its_iteration(loop):
    breakdown = loop.breakdown
    for into, hooks in (
        (breakdown.atypical, {"logger": 3}),
        (breakdown.plain, {"ema": 1}),
        (breakdown.traced, {"logger": 2}),
    ):
        breakdown.set_target(into)
        loop.mark("before_train_iter", 5, **hooks)
        loop.end_iteration(4)
    breakdown.finish()
    assert (dict(breakdown.plain.hooks), dict(breakdown.traced.hooks)) == ({"ema": 1}, {"logger": 2})


def test_time_of_hooks_after_the_last_iteration_is_excluded(loop):
    loop.end_iteration()
    loop.mark("before_train_iter", 5, logger=3)
    loop.end_iteration(4)
    loop.mark("before_train_iter", 100, checkpoint=100)
    assert dict(loop.times.hooks) == {"logger": 3}
    assert loop.times.seconds == 9


def test_atypical_iterations_are_summed_separately(loop):
    breakdown = loop.breakdown
    for into in (breakdown.atypical, breakdown.traced, breakdown.atypical, breakdown.traced):
        breakdown.set_target(into)
        loop.iteration()
    loop.breakdown.finish()
    assert breakdown.plain.iterations == 0
    assert breakdown.times is breakdown.traced
    assert (breakdown.traced.iterations, dict(breakdown.traced.parts)) == (2, {"data": 2, "step": 2})


def test_times_are_those_of_atypical_iterations_if_there_are_no_others(loop):
    loop.breakdown.set_target(loop.breakdown.atypical)
    loop.iteration()
    loop.breakdown.finish()
    assert loop.breakdown.times is loop.breakdown.atypical
    assert loop.breakdown.atypical.iterations == 1


def test_times_are_those_of_plain_iterations_if_any(loop):
    loop.breakdown.set_target(loop.breakdown.traced)
    loop.iteration()
    loop.breakdown.set_target(loop.breakdown.plain)
    loop.iteration()
    loop.breakdown.finish()
    assert loop.breakdown.times is loop.breakdown.plain
    assert loop.breakdown.traced.iterations == loop.breakdown.plain.iterations == 1


class TestLaggingDevice:
    def test_breakdown_does_not_wait_for_the_device_before_the_end(self, loop):
        loop.clock.reached = False
        for _ in range(2 * GROUP_ITERATIONS + 1):
            loop.iteration()
        assert (loop.breakdown.plain.iterations, loop.clock.waits) == (0, 0)
        assert loop.times.iterations == 2 * GROUP_ITERATIONS + 1
        assert loop.clock.waits > 0

    def test_breakdown_sums_up_iterations_when_the_device_has_reached_them(self, loop):
        loop.clock.reached = False
        for _ in range(GROUP_ITERATIONS):
            loop.iteration()
        loop.clock.reached = True
        for _ in range(GROUP_ITERATIONS):
            loop.iteration()
        assert (loop.breakdown.plain.iterations, loop.clock.waits) == (2 * GROUP_ITERATIONS, 0)

    def test_breakdown_discards_the_oldest_iterations_of_a_lagging_device(self, loop):
        loop.clock.reached = False
        for _ in range((MAX_PENDING_GROUPS + 2) * GROUP_ITERATIONS):
            loop.iteration()
        assert loop.times.iterations == MAX_PENDING_GROUPS * GROUP_ITERATIONS


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=6, max_size=6), min_size=1, max_size=3),
    st.floats(0, 3),
    st.integers(1, 2 * GROUP_ITERATIONS),
)
def test_parts_and_hooks_sum_to_the_elapsed_time(rows, in_hooks, repeats):
    loop = Loop()
    loop.mark("before_train_epoch")
    for _ in range(repeats):
        for row in rows:
            for point, seconds in zip(POINTS, row[:-1], strict=True):
                loop.mark(point, seconds, a=min(in_hooks, seconds))
            loop.end_iteration(row[-1])
    assert loop.times.iterations == repeats * len(rows)
    assert loop.times.seconds == pytest.approx(loop.clock.now, rel=1e-6, abs=1e-6)


def test_host_clock_returns_seconds_without_blocking():
    clock = HostClock()
    first = clock.mark()
    time.sleep(0.01)
    second = clock.mark()
    assert clock.is_complete(second)
    clock.wait(second)
    assert 0.01 <= clock.elapsed(first, second) <= time.perf_counter() - first


def test_cuda_device_has_a_device_clock_and_cpu_a_host_clock():
    assert isinstance(get_clock(torch.device("cuda", 1)), DeviceClock)
    assert isinstance(get_clock(torch.device("cpu")), HostClock)


class FakeEvent:
    """Event that is complete after a synchronization."""

    reached = False

    def query(self):
        return self.reached

    def elapsed_time(self, other):
        return 250.0

    def synchronize(self):
        self.reached = True


def test_device_clock_queries_an_event_without_blocking():
    clock, event = DeviceClock(torch.device("cuda")), FakeEvent()
    assert not clock.is_complete(event)
    assert not event.reached
    clock.wait(event)
    assert clock.is_complete(event)


def test_device_clock_converts_milliseconds_to_seconds():
    assert DeviceClock(torch.device("cuda")).elapsed(FakeEvent(), FakeEvent()) == 0.25


@pytest.mark.gpu
def test_device_clock_measures_work_on_a_gpu():
    clock = DeviceClock(torch.device("cuda"))
    first = clock.mark()
    torch.cuda._sleep(10_000_000)
    second = clock.mark()
    torch.cuda.synchronize()
    assert clock.elapsed(first, second) > 0.001
