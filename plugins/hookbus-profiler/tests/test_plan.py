import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction, schedule

from hookbus_profiler.plan import ScheduleConfig, fit_schedule

COUNTS = st.integers(0, 4)


@given(COUNTS, st.integers(1, 4), st.integers(1, 4), COUNTS, COUNTS, st.integers(0, 60))
def test_plan_traces_the_same_iterations_as_the_torch_schedule(wait, warmup, active, repeat, skip_first, index):
    plan = ScheduleConfig(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    peer = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first)
    assert plan.is_traced(index) == (peer(index) is not ProfilerAction.NONE)


def test_plan_begins_once_per_cycle():
    plan = ScheduleConfig(wait=1, warmup=1, active=2, repeat=2, skip_first=3)
    assert [i for i in range(30) if plan.is_start(i)] == [4, 8]
    assert [plan.get_cycle(i) for i in (2, 3, 6, 7, 10, 11)] == [0, 1, 1, 2, 2, 0]
    assert plan.length == 11


@pytest.mark.parametrize(("iterations", "parts"), [(1, (0, 0, 1)), (2, (0, 1, 1)), (5, (0, 2, 3)), (100, (10, 2, 10))])
def test_fitted_plan_is_shortened_to_the_iterations(iterations, parts):
    plan = fit_schedule(iterations)
    assert (plan.wait, plan.warmup, plan.active) == parts


@given(st.integers(1, 200))
def test_fitted_plan_never_exceeds_the_iterations(iterations):
    assert fit_schedule(iterations).length <= iterations
