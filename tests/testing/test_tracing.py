"""Tests of the trace of a run: calls of hooks, iterations, and device synchronizations."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.testing import HookTrace, record_trace

if TYPE_CHECKING:
    from pathlib import Path

TIMER = "hookbus.testing.tracing.time.perf_counter_ns"


class Reading(Hook):
    """Hook that reads tensors on the host, and that spends 7 of the time units of a test in each iteration."""

    def __init__(self, now: list[int]) -> None:
        super().__init__(name="reading")
        self.now = now

    def before_train_iter(self) -> None:
        self.now[0] += 2

    def after_train_iter(self, run: Any) -> None:
        self.now[0] += 3
        torch.ones(()).item()
        run.bus.emit("log_scalars", values={})
        self.now[0] += 2

    def log_scalars(self) -> None:
        self.now[0] += 10
        torch.ones(2).tolist()


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> HookTrace:
    """Return the trace of three iterations: data takes 20 units, the step 50, and the hook 7 + 10."""
    now = [1000]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])
    bus: Any = HookBus([Reading(now)])
    with bus.run(iterations=3):
        torch.ones(()).item()  # not that of a hook
        with record_trace(bus) as recorded:
            for index in range(3):
                now[0] += 20
                bus.emit("before_train_iter", batch_idx=index)
                now[0] += 50
                bus.emit("after_train_iter", batch_idx=index)
        assert list(bus.hooks) == ["reading"]
    return recorded


def test_calls_and_iterations_have_their_times(trace: HookTrace) -> None:
    assert [(span.point, span.end - span.start) for span in trace.spans[:3]] == [
        ("before_train_iter", 2),
        ("log_scalars", 10),
        ("after_train_iter", 15),
    ]
    assert [iteration.number for iteration in trace.iterations] == [1, 2, 3]
    first = trace.iterations[0]
    assert (first.start, first.step_start, first.step_end, first.end) == (1020, 1022, 1072, 1087)
    assert all(later.start - earlier.end == 20 for earlier, later in pairwise(trace.iterations))


def test_summary_excludes_the_first_iteration_and_nested_calls(trace: HookTrace) -> None:
    summary = trace.summarize()
    assert (summary.iterations, summary.iteration_ns, summary.data_ns) == (2, 2 * 87, 2 * 20)
    assert [(row.point, row.calls, row.total_ns, row.max_ns) for row in summary.in_iterations] == [
        ("log_scalars", 2, 20, 10),
        ("after_train_iter", 2, 10, 5),
        ("before_train_iter", 2, 4, 2),
    ]
    assert summary.share == 34 / 174
    assert [(row.point, row.total_ns) for row in summary.outside] == [
        ("log_scalars", 10),
        ("after_train_iter", 5),
        ("before_train_iter", 2),
    ]


def test_synchronizations_have_the_hook_and_the_line(trace: HookTrace) -> None:
    assert [(event.hook, event.point, event.place.text) for event in trace.synchronizations[:2]] == [
        ("reading", "after_train_iter", "torch.ones(()).item()"),
        ("reading", "log_scalars", "torch.ones(2).tolist()"),
    ]
    assert {event.place.file for event in trace.synchronizations} == {__file__}
    assert {row.point: row.synchronizations for row in trace.summarize().in_iterations} == {
        "log_scalars": 2,
        "after_train_iter": 2,
        "before_train_iter": 0,
    }


def test_chrome_trace_nests_the_calls_in_the_iterations(trace: HookTrace, tmp_path: Path) -> None:
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"] == [
        ("process_name", "rank 0"),
        ("thread_name", "training"),
    ]
    slices = {event["name"]: event for event in reversed(events) if event["ph"] == "X"}
    assert {name: (event["ts"], event["dur"]) for name, event in slices.items()} == {
        "iteration 1": (0, 0.067),
        "iteration 2": (0.087, 0.067),
        "iteration 3": (0.174, 0.067),
        "data": (0.067, 0.02),
        "step": (0.002, 0.05),
        "reading: before_train_iter": (0, 0.002),
        "reading: after_train_iter": (0.052, 0.015),
        "reading: log_scalars": (0.055, 0.01),
    }
    instants = [event for event in events if event["ph"] == "i"]
    assert len(instants) == 6
    assert instants[0]["args"]["code"] == "torch.ones(()).item()"


def test_requested_operations_are_calls_of_their_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000]
    monkeypatch.setattr("time.perf_counter_ns", lambda: now[0])

    class Recording(Hook):
        def after_train_iter(self, run: Any) -> None:
            now[0] += 1
            run.request_record(run.metrics.window("w"), self.write)

        def write(self, metrics: Any, step: int) -> None:
            now[0] += 9

    bus: Any = HookBus([Recording()])
    with record_trace(bus) as trace, bus.run(iterations=1):
        bus.emit("before_train_iter", batch_idx=0)
        bus.emit("after_train_iter", batch_idx=0)
    summary = trace.summarize()
    assert [(row.point, row.total_ns) for row in summary.in_iterations] == [("after_train_iter", 1)]
    assert [(row.point, row.total_ns) for row in summary.outside] == [("the requested record", 9)]


def test_excluded_and_failing_hooks() -> None:
    class Failing(Hook):
        def before_train(self) -> None:
            raise ValueError("no")

    bus: Any = HookBus([Failing(name="a"), Reading([0])])
    with record_trace(bus, without=["reading"]) as trace:
        bus.fire("after_train_iter")
        with pytest.raises(ValueError, match="no"):
            bus.fire("before_train")
        torch.ones(()).item()
    assert [(span.hook, span.point) for span in trace.spans] == [("a", "before_train")]
    assert trace.synchronizations == []
    assert trace.summarize().iterations == 0
