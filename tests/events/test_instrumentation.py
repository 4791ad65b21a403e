"""Tests of the measurement and tracing of listeners."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hookbus import Hook, HookBus, every, hookimpl
from hookbus._events.instrumentation import time_hooks, trace_hooks


class Working(Hook):
    def before_train(self) -> None: ...

    @hookimpl(when=every(2))
    def after_train_iter(self) -> None: ...


class Failing(Hook):
    def before_train(self) -> None:
        raise ValueError("no")


def test_calls_are_reported_only_inside_the_context() -> None:
    seen: list[tuple[str, str]] = []
    bus: Any = HookBus([Working(name="a"), Working(name="b", priority=10)])
    bus.fire("before_train")
    with trace_hooks(bus, lambda *call: seen.append(call)):
        bus.emit("before_train")
        for _ in range(2):
            bus.fire("after_train_iter")
    bus.fire("before_train")
    assert seen == [
        ("b", "before_train"),
        ("a", "before_train"),
        ("a", "after_train_iter"),
        ("b", "after_train_iter"),
    ]


def test_times_are_recorded_for_failing_calls_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.accumulate(itertools.count(1))  # 1 3 6 10 15 21 28 36: the calls take 2, 4, 6 and 8 ticks
    monkeypatch.setattr("hookbus._events.instrumentation.perf_counter_ns", lambda: next(ticks))
    bus: Any = HookBus([Working(name="a"), Failing(name="f", priority=90)])
    with time_hooks(bus) as timings:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                bus.fire("before_train")
    assert timings == {("a", "before_train"): 2 + 6, ("f", "before_train"): 4 + 8}


def ticking(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the timer by a counter in nanoseconds, which the test increments."""
    now = [0]
    monkeypatch.setattr("hookbus._events.instrumentation.perf_counter_ns", lambda: now[0])
    return now


def test_nested_calls_are_counted_for_the_inner_hook_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ticking(monkeypatch)

    class Emitting(Hook):
        def before_train(self, run: Any) -> None:
            now[0] += 5
            run.bus.emit("log_scalars", values={})
            now[0] += 2

    class Writing(Hook):
        def log_scalars(self) -> None:
            now[0] += 30

    bus: Any = HookBus([Emitting(), Writing()])
    with time_hooks(bus) as timings:
        bus.fire("before_train")
        assert timings.pop(("writing", "log_scalars")) == 30
        bus.fire("log_scalars")
    assert timings == {("emitting", "before_train"): 7, ("writing", "log_scalars"): 30}
    assert timings.total == 67


def test_requested_operations_are_counted_for_their_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ticking(monkeypatch)

    class Recording(Hook):
        def after_train_iter(self, run: Any) -> None:
            run.request_record(run.metrics.window("w"), self.write)

        def write(self, metrics: Any, step: int) -> None:
            now[0] += 9

    bus: Any = HookBus([Recording()])
    with time_hooks(bus) as outer, time_hooks(bus) as inner, bus.run(iterations=1):
        bus.emit("before_train_iter", batch_idx=0)
        bus.emit("after_train_iter", batch_idx=0)
    for timings in (outer, inner):
        assert timings["recording", "the requested record"] == 9
    assert bus.table.work_wrappers == []


def test_excluded_hook_is_not_measured() -> None:
    bus: Any = HookBus([Working(name="a"), working := Working(name="b")])
    with time_hooks(bus, without=["b"]) as timings:
        assert bus.table.listeners("before_train", bus.current)[1].call == working.before_train
        bus.fire("before_train")
    assert list(timings) == [("a", "before_train")]


def test_measured_listener_receives_arguments_of_any_name() -> None:
    seen: list[dict[str, Any]] = []
    bus: Any = HookBus()
    bus.declare("after_render", args=("key", "call"))
    bus.on("after_render")(lambda **arguments: seen.append(arguments))
    with time_hooks(bus):
        bus.fire("after_render", key=1, call=2)
    assert seen == [{"run": bus.current, "key": 1, "call": 2}]


def test_contexts_can_be_nested() -> None:
    seen: list[str] = []
    bus: Any = HookBus([Working()])
    with trace_hooks(bus, lambda hook, point: seen.append("outer")):
        with trace_hooks(bus, lambda hook, point: seen.append("inner")), time_hooks(bus) as timings:
            bus.fire("before_train")
        bus.fire("before_train")
    assert seen == ["inner", "outer", "outer"]
    assert list(timings) == [("working", "before_train")]


def test_contexts_nest_in_the_order_of_their_entry() -> None:
    seen: list[str] = []
    bus: Any = HookBus([Working()])
    first, second = (trace_hooks(bus, lambda hook, point, name=name: seen.append(name)) for name in ("first", "second"))
    with second, first:
        bus.fire("before_train")
    assert sorted(seen) == ["first", "second"]


def test_contexts_end_in_any_order() -> None:
    # Hooks begin and end measurements at events, independently of each other.
    bus: Any = HookBus([working := Working()])
    first, second = time_hooks(bus), time_hooks(bus)
    first_timings, second_timings = first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    bus.fire("before_train")
    assert (list(first_timings), list(second_timings)) == ([], [("working", "before_train")])
    second.__exit__(None, None, None)
    assert bus.table.listeners("before_train", bus.current)[0].call == working.before_train


def test_wrapping_ends_with_the_context_after_an_exception_as_well() -> None:
    bus: Any = HookBus([working := Working(), Failing(priority=90)])

    def call() -> Any:
        return bus.table.listeners("before_train", bus.current)[0].call

    assert call() == working.before_train
    with time_hooks(bus):
        assert call() != working.before_train
    with pytest.raises(ValueError, match="no"), time_hooks(bus):
        bus.fire("before_train")
    assert call() == working.before_train
    assert bus.table.wrappers == []


def test_exception_is_attributed_to_its_hook_while_tracing() -> None:
    bus: Any = HookBus([Failing(name="f")])
    with trace_hooks(bus, lambda *_: None), pytest.raises(ValueError, match="no") as caught:
        bus.fire("before_train")
    assert "raised by hook 'f'" in caught.value.__notes__[0]
