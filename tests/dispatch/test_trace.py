"""Looking at what is called, and how long it takes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hookbus import Hook, HookBus, every, hookimpl
from hookbus.dispatch.trace import timed, traced


class Working(Hook):
    def before_train(self) -> None: ...

    @hookimpl(when=every(2))
    def after_train_iter(self) -> None: ...


class Failing(Hook):
    def before_train(self) -> None:
        raise ValueError("no")


def test_each_call_is_reported_before_it_is_made_and_only_while_somebody_looks() -> None:
    seen: list[tuple[str, str]] = []
    bus: Any = HookBus([Working(name="a"), Working(name="b", priority=10)])
    bus.fire("before_train")
    with traced(bus, lambda *call: seen.append(call)):
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


def test_times_are_kept_by_hook_and_point_also_of_calls_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.accumulate(itertools.count(1))  # 1 3 6 10 15 21 28 36: calls take 2, 4, 6 and 8 of them
    monkeypatch.setattr("hookbus.dispatch.trace.perf_counter_ns", lambda: next(ticks))
    bus: Any = HookBus([Working(name="a"), Failing(name="f", priority=90)])
    with timed(bus) as spent:
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                bus.fire("before_train")
    assert spent == {("a", "before_train"): 2 + 6, ("f", "before_train"): 4 + 8}


def ticking(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that goes on by what is added to it."""
    now = [0]
    monkeypatch.setattr("hookbus.dispatch.trace.perf_counter_ns", lambda: now[0])
    return now


def test_what_one_hook_does_inside_of_another_counts_for_the_inner_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ticking(monkeypatch)

    class Asking(Hook):
        def before_train(self, run: Any) -> None:
            now[0] += 5
            run.bus.emit("log_scalars", values={})
            now[0] += 2

    class Writing(Hook):
        def log_scalars(self) -> None:
            now[0] += 30

    bus: Any = HookBus([Asking(), Writing()])
    with timed(bus) as spent:
        bus.fire("before_train")
        assert spent.pop(("writing", "log_scalars")) == 30
        bus.fire("log_scalars")
    assert spent == {("asking", "before_train"): 7, ("writing", "log_scalars"): 30}
    assert spent.total == 67


def test_what_is_done_for_a_hook_after_the_event_counts_for_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ticking(monkeypatch)

    class Recording(Hook):
        def after_train_iter(self, run: Any) -> None:
            run.request_record(run.metrics.window("w"), self.write)

        def write(self, metrics: Any, step: int) -> None:
            now[0] += 9

    bus: Any = HookBus([Recording()])
    with timed(bus) as outer, timed(bus) as inner, bus.run(iterations=1):
        bus.emit("before_train_iter", batch_idx=0)
        bus.emit("after_train_iter", batch_idx=0)
    for spent in (outer, inner):
        assert spent["recording", "the record it asked for"] == 9
    assert bus.table.around_work is None


def test_a_hook_may_be_left_alone() -> None:
    bus: Any = HookBus([Working(name="a"), working := Working(name="b")])
    with timed(bus, without=["b"]) as spent:
        assert bus.table.listeners("before_train", bus.current)[1].call == working.before_train
        bus.fire("before_train")
    assert list(spent) == [("a", "before_train")]


def test_a_listener_gets_the_arguments_of_its_point_whatever_they_are_called() -> None:
    seen: list[dict[str, Any]] = []
    bus: Any = HookBus()
    bus.declare("after_render", args=("key", "call"))
    bus.on("after_render")(lambda **given: seen.append(given))
    with timed(bus):
        bus.fire("after_render", key=1, call=2)
    assert seen == [{"run": bus.current, "key": 1, "call": 2}]


def test_two_may_look_at_once() -> None:
    seen: list[str] = []
    bus: Any = HookBus([Working()])
    with traced(bus, lambda hook, point: seen.append("outer")):
        with traced(bus, lambda hook, point: seen.append("inner")), timed(bus) as spent:
            bus.fire("before_train")
        bus.fire("before_train")
    assert seen == ["inner", "outer", "outer"]
    assert list(spent) == [("working", "before_train")]


def test_off_it_costs_nothing_and_an_error_inside_switches_it_off() -> None:
    bus: Any = HookBus([working := Working(), Failing(priority=90)])

    def call() -> Any:
        return bus.table.listeners("before_train", bus.current)[0].call

    assert call() == working.before_train
    with timed(bus):
        assert call() != working.before_train
    with pytest.raises(ValueError, match="no"), timed(bus):
        bus.fire("before_train")
    assert call() == working.before_train
    assert bus.table.wrap is None


def test_a_failure_is_still_attributed_to_its_hook() -> None:
    bus: Any = HookBus([Failing(name="f")])
    with traced(bus, lambda *_: None), pytest.raises(ValueError, match="no") as caught:
        bus.fire("before_train")
    assert "raised by hook 'f'" in caught.value.__notes__[0]
