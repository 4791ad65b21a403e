import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction, schedule

from hookbus.errors import ConfigError
from hookbus_profiler import ProfilerConfig, ProfilerHook, ScheduleConfig
from hookbus_profiler.config import fit_schedule


def test_default_schedule_is_one_short_cycle():
    assert ProfilerConfig().plan == ScheduleConfig(wait=10, warmup=2, active=10, repeat=1)


def test_schedule_longer_than_profile_iters_raises_with_the_sum():
    with pytest.raises(ConfigError) as caught:
        ProfilerHook(profile_iters=30, schedule={"wait": 5, "warmup": 1, "active": 10, "repeat": 2, "skip_first": 3})
    assert (
        "schedule: skip_first 3 + (wait 5 + warmup 1 + active 10) x repeat 2 = 35 iterations, but profile_iters is 30. "
        "Set `profile_iters: 35` or shorten the schedule."
    ) in str(caught.value)


def test_schedule_of_exactly_profile_iters_is_valid():
    ProfilerHook(profile_iters=100, schedule={"wait": 10, "warmup": 10, "active": 80})
    ProfilerHook(profile_iters=1, by_epoch=True, schedule={"wait": 10, "warmup": 10, "active": 80})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": {"active": 0}}, "active"),
        ({"schedule": {"actve": 1}}, "actve"),
        ({"profile_iters": 0}, "profile_iters"),
        ({"frequency": 3}, "Set `schedule` to select the traced iterations"),
        ({"on_trace_ready": "os.no_such_function"}, "on_trace_ready"),
    ],
)
def test_invalid_setting_raises(settings, message):
    with pytest.raises(ConfigError) as caught:
        ProfilerHook(settings)
    assert message in str(caught.value)


def test_handler_may_be_an_import_string():
    import json

    assert ProfilerConfig(on_trace_ready="json.dumps").on_trace_ready is json.dumps
    assert ProfilerConfig(on_trace_ready="json.dumps").model_dump(mode="json")["on_trace_ready"] == "json.dumps"


def test_handler_in_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the working directory is searched, as a console script does not have it on `sys.path`."""
    (tmp_path / "traces_of_this_test.py").write_text("def ready(profile):\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    function = ProfilerConfig(on_trace_ready="traces_of_this_test:ready").on_trace_ready
    assert function is not None
    assert function(None) == 3


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
