"""Tests of the order of listeners and of the generated functions that call them."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import HookBus, every, last
from hookbus._events.codegen import compile_point, compile_source
from hookbus._events.ordering import Listener, sort_listeners
from hookbus._events.points import Point
from hookbus._events.schedule_gate import ScheduleGate
from hookbus._events.schedules import Schedule
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import ConfigError, OrderError, PointError
from hookbus.lifecycle import POINTS
from hookbus.testing import RecordingBus

NAMES = "abcdefg"


def listener(name: str, priority: int = 50, **options: Any) -> Listener:
    return Listener(name, object(), "after_epoch", lambda: None, (), priority=priority, **options)


# -- order -------------------------------------------------------------------------------------------------


def names(listeners: list[Listener], reverse: bool = False) -> str:
    return "".join(item.hook for item in sort_listeners(listeners, reverse))


def test_listeners_run_by_ascending_priority_or_descending_if_reversed() -> None:
    listeners = [listener("a", 50), listener("b", 10), listener("c", 90)]
    assert names(listeners) == "bac"
    assert names(listeners, reverse=True) == "cab"


def test_ties_run_in_registration_order_and_are_reversed_as_well() -> None:
    listeners = [listener("a"), listener("b"), listener("c", 10), listener("d")]
    assert names(listeners) == "cabd"
    assert names(listeners, reverse=True) == "dbac"


def test_constraints_take_precedence_over_priority_in_both_directions() -> None:
    listeners = [listener("a", 10), listener("b", 50), listener("c", 90, before=("a",))]
    assert names(listeners) == "bca"
    assert names(listeners, reverse=True) == "cba"
    listeners = [listener("a", 10, after=("c",)), listener("b", 50), listener("c", 90)]
    assert names(listeners) == "bca"
    assert names(listeners, reverse=True) == "cba"


def test_constraints_on_absent_hooks_or_itself_have_no_effect() -> None:
    listeners = [listener("a", before=("ghost", "a")), listener("b", after=("ghost",))]
    assert names(listeners) == "ab"


@pytest.mark.parametrize(
    ("constraints", "cycle"),
    [
        ({"a": "b", "b": "a"}, "'a' before 'b' before 'a'"),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, "'a' before 'b' before 'c' before 'a'"),
        ({"a": "b", "b": "c", "c": "b", "d": "c"}, "'b' before 'c' before 'b'"),
    ],
)
def test_contradictory_constraints_raise_with_the_cycle(constraints: dict[str, str], cycle: str) -> None:
    listeners = [listener(name, before=(constraints.get(name, ""),)) for name in "abcd"]
    with pytest.raises(OrderError) as caught:
        sort_listeners(listeners, reverse=False)
    expected = f"after_epoch: before=/after= constraints form a cycle: {cycle}. Remove one of them."
    assert str(caught.value) == expected


def defined_order(listeners: list[Listener], reverse: bool) -> list[str] | None:
    """Return the first valid order by priority among all permutations, None if the constraints form a cycle."""
    by_number = sorted(range(len(listeners)), key=lambda i: (listeners[i].priority, i), reverse=reverse)
    rank = {listeners[i].hook: n for n, i in enumerate(by_number)}
    known = {item.hook for item in listeners}
    pairs = [(item.hook, name) for item in listeners for name in item.before if name in known and name != item.hook]
    pairs += [(name, item.hook) for item in listeners for name in item.after if name in known and name != item.hook]
    allowed = [
        order
        for order in itertools.permutations(rank)
        if all(order.index(first) < order.index(second) for first, second in pairs)
    ]
    return list(min(allowed, key=lambda order: [rank[name] for name in order])) if allowed else None


constraints = st.lists(st.sampled_from([*NAMES[:5], "ghost"]), max_size=2).map(tuple)
populations = st.lists(st.tuples(st.sampled_from([10, 50, 90]), constraints, constraints), min_size=1, max_size=5).map(
    lambda rows: [listener(NAMES[i], p, before=b, after=a) for i, (p, b, a) in enumerate(rows)]
)


@settings(deadline=None, max_examples=300)
@given(populations, st.booleans())
def test_order_matches_the_brute_force_definition(listeners: list[Listener], reverse: bool) -> None:
    expected = defined_order(listeners, reverse)
    if expected is None:
        with pytest.raises(OrderError):
            sort_listeners(listeners, reverse)
    else:
        assert [item.hook for item in sort_listeners(listeners, reverse)] == expected


# -- the generated function ----------------------------------------------------------------------------------


class Recorder:
    """Factory of listeners that record their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def listener(
        self, name: str, *wants: str, point: str = "after_train_iter", raises: Exception | None = None, **options: Any
    ) -> Listener:
        def call(*args: Any, **kwargs: Any) -> None:
            self.calls.append((name, *args, kwargs) if kwargs else (name, *args))
            if raises is not None:
                raise raises

        return Listener(name, self, point, call, wants, **options)

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


def propagate(error: Exception, raiser: Listener, clock: Clock, continue_after: Callable[[], None]) -> bool:
    return True


def compile_listeners(
    listeners: list[Listener], clock: Clock | None = None, point: Point | None = None, **options: Any
) -> Callable[..., None]:
    settings: dict[str, Any] = {
        "run": "the run",
        "default_arguments": {},
        "namespace": {},
        "handle_exception": propagate,
        **options,
    }
    point = point or POINTS["after_train_iter"]
    return compile_point(point, listeners, clock or Clock(), counter_view=PointCounters, **settings)


def test_listener_receives_exactly_its_arguments_by_position() -> None:
    seen = Recorder()
    fire = compile_listeners(
        [seen.listener("a", "loss", "run"), seen.listener("b"), seen.listener("c", "batch", accepts_kwargs=True)]
    )
    fire(batch=1, loss=2, step=3)
    rest = {"run": "the run", "step": 3, "batch_idx": None, "model": None, "outputs": None, "loss": 2}
    assert seen.calls == [("a", 2, "the run"), ("b",), ("c", 1, rest)]


def test_default_is_computed_only_if_a_listener_takes_the_argument() -> None:
    computed: list[str] = []
    seen = Recorder()

    def compute(name: str) -> str:
        computed.append(name)
        return name

    default_arguments = {"loss": "compute('loss')", "model": "compute('model')"}
    fire = compile_listeners(
        [seen.listener("a", "loss")], default_arguments=default_arguments, namespace={"compute": compute}
    )
    fire()
    fire(loss=0)
    assert seen.calls == [("a", "loss"), ("a", 0)]
    assert computed == ["loss"]


def test_prologue_and_epilogue_run_around_the_listeners() -> None:
    seen = Recorder()
    note = seen.calls.append
    fire = compile_listeners(
        [seen.listener("a")],
        prologue=["note(('first', batch))"],
        epilogue=["note(('last',))"],
        namespace={"note": note},
    )
    fire(batch=7)
    assert seen.calls == [("first", 7), ("a",), ("last",)]


def test_point_without_listeners_and_statements_can_be_emitted() -> None:
    compile_listeners([])(batch=3)


def test_traceback_shows_the_line_that_called_the_listener() -> None:
    seen = Recorder()
    fire = compile_listeners([seen.listener("a", "batch", raises=ValueError("no"))])
    with pytest.raises(ValueError, match="no") as caught:
        fire(batch=3)
    assert "_0(batch)" in "".join(traceback.format_exception(caught.value))


def test_identical_source_is_compiled_once() -> None:
    assert compile_source("x = 1\n", "t") is compile_source("x = 1\n", "t")


# -- schedules -----------------------------------------------------------------------------------------------


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the iterations at which schedules are evaluated."""
    computed: list[int] = []
    now = ScheduleGate.due_listeners

    def counted(self: ScheduleGate) -> list[bool]:
        computed.append(self._view.clock.iter + 1)
        return now(self)

    monkeypatch.setattr(ScheduleGate, "due_listeners", counted)
    return computed


def iterate(fire: Callable[..., None], clock: Clock, iterations: int) -> None:
    for _ in range(iterations):
        clock.begin_iter(None)
        clock.end_iter(None)
        fire()


def test_listeners_that_are_not_due_are_skipped_without_reordering() -> None:
    seen, clock = Recorder(), Clock()
    two, three = every(2), every(3)
    fire = compile_listeners(
        [seen.listener("a", schedule=two), seen.listener("b"), seen.listener("c", schedule=three), seen.listener("d")],
        clock,
    )
    iterate(fire, clock, 6)
    assert "".join(seen.names) == "bd" + "abd" + "bcd" + "abd" + "bd" + "abcd"


def test_schedules_are_not_evaluated_if_none_is_due(evaluations: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    many = [seen.listener(f"h{i}", schedule=every(100)) for i in range(30)]
    fire = compile_listeners(many, clock)
    iterate(fire, clock, 250)
    assert len(seen.calls) == 60
    assert evaluations == [1, 100, 101, 200, 201]


def test_schedule_that_is_never_due_again_is_not_evaluated_again(evaluations: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    iterate(compile_listeners([seen.listener("a", schedule=every(None))], clock), clock, 50)
    assert seen.calls == []
    assert evaluations == [1]


def test_last_is_evaluated_once_per_epoch(evaluations: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    clock.max_epochs, clock.epoch_length = 3, 10
    fire = compile_listeners([seen.listener("a", schedule=last)], clock)
    for _ in range(3):
        clock.begin_epoch()
        iterate(fire, clock, 10)
        clock.end_epoch()
    assert seen.names == ["a"]
    assert evaluations == [1, 11, 21, 30]


def test_schedules_of_different_units_are_evaluated_at_their_own_numbers(evaluations: list[int]) -> None:
    seen, clock, pair = Recorder(), Clock(), torch.zeros(2)
    units = {"a": every(40), "b": every(30, unit="batch"), "c": every(60, unit="sample")}
    fire = compile_listeners([seen.listener(name, schedule=schedule) for name, schedule in units.items()], clock)
    for _ in range(2):
        clock.begin_epoch()
        for _ in range(50):
            clock.begin_iter(pair)
            clock.end_iter(pair)
            fire()
        clock.end_epoch()
    assert seen.names == ["b", "c", "a", "c", "a", "b", "c"]
    assert evaluations == [1, 30, 31, 40, 41, 51, 60, 61, 80, 81, 90, 91]


def test_schedule_with_two_units_is_evaluated_at_every_event(evaluations: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    iterate(compile_listeners([seen.listener("a", schedule=every(3) & every(2, unit="step"))], clock), clock, 6)
    assert seen.names == ["a"]
    assert evaluations == [1, 2, 3, 4, 5, 6]


def test_invalid_schedule_raises_with_hook_and_point_and_ends_the_run() -> None:
    seen, clock = Recorder(), Clock()
    with pytest.raises(ConfigError, match="hook 'a' at after_train_iter: when=last: the run has no known limit"):
        iterate(
            compile_listeners([seen.listener("a", schedule=last)], clock, handle_exception=lambda *_: False), clock, 1
        )


def test_should_trigger_is_called_only_if_the_schedule_is_due() -> None:
    seen, clock, indices = Recorder(), Clock(), []

    def is_triggered(index: int) -> bool:
        indices.append(index)
        return index != 3

    fire = compile_listeners(
        [seen.listener("a", schedule=every(2), predicate=is_triggered), seen.listener("b", predicate=is_triggered)],
        clock,
    )
    iterate(fire, clock, 4)
    assert indices == [0, 1, 1, 2, 3, 3]
    assert seen.names == ["b", "a", "b", "b"]


# -- failures ------------------------------------------------------------------------------------------------


def continue_after(error: Exception, raiser: Listener, clock: Clock, rest: Callable[[], None]) -> bool:
    rest()
    return False


@pytest.mark.parametrize("schedule", [None, every(2)])
def test_listeners_after_a_failure_receive_the_same_arguments(schedule: Schedule | None) -> None:
    seen, clock = Recorder(), Clock()
    listeners = [
        seen.listener("a", schedule=schedule),
        seen.listener("b", raises=ValueError(), schedule=schedule),
        seen.listener("c", "batch", schedule=every(3)),
        seen.listener("d", "batch"),
        seen.listener("e", raises=KeyError()),
        seen.listener("f", "loss", schedule=every(2)),
    ]
    fire = compile_listeners(
        listeners,
        clock,
        handle_exception=continue_after,
        epilogue=["note(('end',))"],
        namespace={"note": seen.calls.append},
    )
    clock.end_iter(None)
    clock.end_iter(None)
    fire(batch=5, loss=6)
    assert seen.calls == [("a",), ("b",), ("d", 5), ("e",), ("f", 6), ("end",)]


def test_failure_does_not_call_listeners_that_are_not_due() -> None:
    seen, clock = Recorder(), Clock()
    listeners = [seen.listener("a", raises=ValueError()), seen.listener("b", schedule=every(2)), seen.listener("c")]
    fire = compile_listeners(listeners, clock, handle_exception=continue_after)
    iterate(fire, clock, 1)
    seen.calls.clear()
    clock.iter = 0
    fire()
    assert seen.names == ["a", "c"]


def test_failure_does_not_lose_seconds_of_later_listeners() -> None:
    now = [0.0]
    seen, clock = Recorder(), Clock(timer=lambda: now[0])
    clock.start()
    listeners = [seen.listener("a", raises=ValueError()), seen.listener("b", schedule=every(10, unit="seconds"))]
    fire = compile_listeners(listeners, clock, handle_exception=continue_after)
    for second in (1.0, 9.0, 11.0, 19.0, 21.0):
        now[0] = second
        iterate(fire, clock, 1)
    assert seen.names == ["a", "a", "a", "b", "a", "a", "b"]


def test_exception_propagates_unchanged_if_the_handler_returns_true() -> None:
    seen, error = Recorder(), ValueError("mine")
    fire = compile_listeners([seen.listener("a", raises=error), seen.listener("b")])
    with pytest.raises(ValueError, match="mine") as caught:
        fire()
    assert caught.value is error
    assert seen.names == ["a"]


def test_exception_of_generated_code_is_not_attributed_to_a_listener() -> None:
    handled: list[Listener] = []

    def handle_exception(error: Exception, raiser: Listener, *_: Any) -> bool:
        handled.append(raiser)
        return False

    fire = compile_listeners(
        [Recorder().listener("a", "loss")], default_arguments={"loss": "1 / 0"}, handle_exception=handle_exception
    )
    with pytest.raises(ZeroDivisionError):
        fire()
    assert handled == []


ARGUMENTS = [(point, name) for point in POINTS.values() for name in point.args]


@pytest.mark.parametrize("has_listeners", [True, False])
@pytest.mark.parametrize(
    ("point", "unknown", "message"),
    [
        ("after_train_iter", "losss", "after_train_iter: unknown argument 'losss'. Did you mean 'loss'? Signature: "),
        ("before_epoch", "loss", "before_epoch: unknown argument 'loss'. Available: epoch, model. Signature: "),
        ("before_train_iter", "outputs", "before_train_iter: unknown argument 'outputs'."),
        ("cleanup", "batch", "cleanup: unknown argument 'batch'. Signature: cleanup(run)."),
        ("cleanup", "point", "cleanup: unknown argument 'point'. Signature: cleanup(run)."),
        ("log_scalars", "value", "log_scalars: unknown argument 'value'. Did you mean 'values'?"),
        ("before_epoch", "data_batch", "before_epoch: unknown argument 'batch'."),
    ],
)
def test_unknown_argument_raises(has_listeners: bool, point: str, unknown: str, message: str) -> None:
    bus: Any = RecordingBus() if has_listeners else HookBus()
    with pytest.raises(PointError) as caught:
        bus.emit(point, **{unknown: 1})
    assert message in str(caught.value)


@pytest.mark.parametrize(("point", "name"), ARGUMENTS, ids=[f"{point.name}-{name}" for point, name in ARGUMENTS])
def test_every_argument_of_every_point_reaches_the_listeners(point: Point, name: str) -> None:
    value: Any = {"metrics": {"accuracy": 0.5}, "loss": 0.25}.get(name, f"the {name}")
    bus: Any = RecordingBus()
    bus.emit(point.name, **{name: value})
    (arguments,) = bus.get_arguments(point.name)
    if point.name in ("after_val_epoch", "after_test_epoch", "after_predict_epoch") and name == "metrics":
        value = {f"{point.name[6:].partition('_')[0]}/accuracy": 0.5}
    assert arguments[name] == value


def test_argument_aliases_and_the_run_are_accepted() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_train_iter", data_batch=[1], run=bus.current, outputs={"loss": 0.25})
    bus.emit("after_train_iter", runner=bus.current, data_batch=[2], batch_idx=9)
    first, second = bus.get_arguments("after_train_iter")
    assert (first["batch"], first["loss"]) == ([1], 0.25)
    assert (second["batch"], second["batch_idx"]) == ([2], 9)


def test_alias_emits_its_point() -> None:
    bus: Any = RecordingBus()
    for alias in ("before_training", "before_step", "after_step", "after_training"):
        bus.emit(alias)
    assert bus.emitted_points == ["before_train", "before_train_iter", "after_train_iter", "after_train"]


def test_omitted_arguments_without_default_are_none() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_train_iter")
    bus.emit("log_images", tag="x")
    assert bus.get_arguments("after_train_iter") == [
        {"step": 1, "batch_idx": 0, "batch": None, "model": None, "outputs": None, "loss": None}
    ]
    assert bus.get_arguments("log_images") == [{"tag": "x", "images": None, "step": 1, "caption": None}]


def test_undeclared_point_raises_and_suggests_a_name() -> None:
    bus: Any = HookBus()
    with pytest.raises(PointError, match="Unknown point 'after_epohc'. Did you mean 'after_epoch'"):
        bus.emit("after_epohc")
    with pytest.raises(PointError, match="Unknown point 'epoch_edn'. Available: .*after_epoch, .* Declare custom"):
        bus.emit("epoch_edn")


def test_declared_point_may_have_arguments_of_any_name() -> None:
    bus: Any = HookBus()
    seen: list[Any] = []
    fire = bus.declare("after_render", args=("point", "rest", "call", "known", "loss"))
    bus.on("after_render")(lambda point, rest, call, known, loss: seen.append((point, rest, call, known, loss)))
    fire(point=1, rest=2, call=3, known=4, loss=5)
    bus.emit("after_render", rest=2)
    assert seen == [(1, 2, 3, 4, 5), (None, 2, None, None, None)]
    with pytest.raises(PointError, match="after_render: unknown argument 'batch'"):
        fire(batch=1)


@pytest.mark.parametrize("point", ["before_run", "before_train", "before_epoch"])
@pytest.mark.parametrize("unknown", ["bacth", "loss"])
def test_unknown_arguments_raise_if_the_point_was_emitted_automatically(point: str, unknown: str) -> None:
    bus: Any = RecordingBus()
    with bus.run(epochs=1):
        bus.emit("before_train_epoch")
        fired = list(bus.emitted_points)
        with pytest.raises(PointError, match=f"{point}: unknown argument '{unknown}'"):
            bus.emit(point, **{unknown: 1.0})
        assert bus.emitted_points == fired
