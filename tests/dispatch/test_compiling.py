"""The order of listeners, the functions that call them, and who is running."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus import every, last
from hookbus.clock import Clock
from hookbus.dispatch.compiling import Listener, compile_point, load_text, ordered
from hookbus.dispatch.due import Due
from hookbus.errors import ConfigError, OrderError
from hookbus.lifecycle import POINTS, Point
from hookbus.when import Schedule

NAMES = "abcdefg"


def listener(name: str, priority: int = 50, **options: Any) -> Listener:
    return Listener(name, object(), "after_epoch", lambda: None, (), priority=priority, **options)


# -- order -------------------------------------------------------------------------------------------------


def names(listeners: list[Listener], reverse: bool = False) -> str:
    return "".join(each.hook for each in ordered(listeners, reverse))


def test_numbers_run_from_small_to_large_and_reversed_from_large_to_small() -> None:
    there = [listener("a", 50), listener("b", 10), listener("c", 90)]
    assert names(there) == "bac"
    assert names(there, reverse=True) == "cab"


def test_ties_run_in_the_order_of_registration_and_reversed_likewise() -> None:
    there = [listener("a"), listener("b"), listener("c", 10), listener("d")]
    assert names(there) == "cabd"
    assert names(there, reverse=True) == "dbac"


def test_names_mean_time_and_win_over_numbers_in_both_directions() -> None:
    there = [listener("a", 10), listener("b", 50), listener("c", 90, before=("a",))]
    assert names(there) == "bca"
    assert names(there, reverse=True) == "cba"
    there = [listener("a", 10, after=("c",)), listener("b", 50), listener("c", 90)]
    assert names(there) == "bca"
    assert names(there, reverse=True) == "cba"


def test_names_of_hooks_that_are_not_there_and_of_itself_have_no_effect() -> None:
    there = [listener("a", before=("ghost", "a")), listener("b", after=("ghost",))]
    assert names(there) == "ab"


@pytest.mark.parametrize(
    ("wishes", "circle"),
    [
        ({"a": "b", "b": "a"}, "'a' before 'b' before 'a'"),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, "'a' before 'b' before 'c' before 'a'"),
        ({"a": "b", "b": "c", "c": "b", "d": "c"}, "'b' before 'c' before 'b'"),
    ],
)
def test_wishes_that_contradict_each_other_show_the_circle(wishes: dict[str, str], circle: str) -> None:
    there = [listener(name, before=(wishes.get(name, ""),)) for name in "abcd"]
    with pytest.raises(OrderError) as caught:
        ordered(there, reverse=False)
    expected = f"after_epoch: before=/after= constraints form a cycle: {circle}. Remove one of them."
    assert str(caught.value) == expected


def defined_order(there: list[Listener], reverse: bool) -> list[str] | None:
    """By brute force: of all orders that the wishes allow, the one that takes, at each place, the first by number."""
    by_number = sorted(range(len(there)), key=lambda i: (there[i].priority, i), reverse=reverse)
    rank = {there[i].hook: n for n, i in enumerate(by_number)}
    known = {each.hook for each in there}
    pairs = [(each.hook, name) for each in there for name in each.before if name in known and name != each.hook]
    pairs += [(name, each.hook) for each in there for name in each.after if name in known and name != each.hook]
    allowed = [
        order
        for order in itertools.permutations(rank)
        if all(order.index(first) < order.index(second) for first, second in pairs)
    ]
    return list(min(allowed, key=lambda order: [rank[name] for name in order])) if allowed else None


wishes = st.lists(st.sampled_from([*NAMES[:5], "ghost"]), max_size=2).map(tuple)
populations = st.lists(st.tuples(st.sampled_from([10, 50, 90]), wishes, wishes), min_size=1, max_size=5).map(
    lambda rows: [listener(NAMES[i], p, before=b, after=a) for i, (p, b, a) in enumerate(rows)]
)


@settings(deadline=None, max_examples=300)
@given(populations, st.booleans())
def test_the_order_is_the_one_of_the_definition(there: list[Listener], reverse: bool) -> None:
    expected = defined_order(there, reverse)
    if expected is None:
        with pytest.raises(OrderError):
            ordered(there, reverse)
    else:
        assert [each.hook for each in ordered(there, reverse)] == expected


# -- the generated function ----------------------------------------------------------------------------------


class Recorder:
    """Makes listeners that write down what they were called with."""

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


def no_recovery(error: Exception, raiser: Listener, clock: Clock, go_on: Callable[[], None]) -> bool:
    return True


def compiled(
    listeners: list[Listener], clock: Clock | None = None, point: Point | None = None, **options: Any
) -> Callable[..., None]:
    settings: dict[str, Any] = {"run": "the run", "fill": {}, "names": {}, "recover": no_recovery, **options}
    return compile_point(point or POINTS["after_train_iter"], listeners, clock or Clock(), **settings)


def test_each_listener_gets_exactly_what_it_asks_for_by_position() -> None:
    seen = Recorder()
    fire = compiled([seen.listener("a", "loss", "run"), seen.listener("b"), seen.listener("c", "batch", rest=True)])
    fire(batch=1, loss=2, step=3)
    rest = {"run": "the run", "step": 3, "batch_idx": None, "model": None, "outputs": None, "loss": 2}
    assert seen.calls == [("a", 2, "the run"), ("b",), ("c", 1, rest)]


def test_what_the_caller_left_out_is_filled_in_only_where_somebody_asks_for_it() -> None:
    looked: list[str] = []
    seen = Recorder()

    def look(name: str) -> str:
        looked.append(name)
        return name

    fill = {"loss": "look('loss')", "model": "look('model')"}
    fire = compiled([seen.listener("a", "loss")], fill=fill, names={"look": look})
    fire()
    fire(loss=0)
    assert seen.calls == [("a", "loss"), ("a", 0)]
    assert looked == ["loss"]


def test_statements_of_the_bus_run_before_and_after_the_listeners() -> None:
    seen = Recorder()
    note = seen.calls.append
    fire = compiled(
        [seen.listener("a")], first=["note(('first', batch))"], finally_=["note(('last',))"], names={"note": note}
    )
    fire(batch=7)
    assert seen.calls == [("first", 7), ("a",), ("last",)]


def test_a_point_without_listeners_and_statements_can_be_fired_too() -> None:
    compiled([])(batch=3)


def test_a_traceback_shows_the_line_that_called_the_listener() -> None:
    seen = Recorder()
    fire = compiled([seen.listener("a", "batch", raises=ValueError("no"))])
    with pytest.raises(ValueError, match="no") as caught:
        fire(batch=3)
    assert "_0(batch)" in "".join(traceback.format_exception(caught.value))


def test_the_same_text_is_compiled_once() -> None:
    assert load_text("x = 1\n", "t") is load_text("x = 1\n", "t")


# -- schedules -----------------------------------------------------------------------------------------------


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations at which any schedule was looked at."""
    looked: list[int] = []
    now = Due.now

    def counted(self: Due) -> list[bool]:
        looked.append(self._moment.clock.iter + 1)
        return now(self)

    monkeypatch.setattr(Due, "now", counted)
    return looked


def iterate(fire: Callable[..., None], clock: Clock, iterations: int) -> None:
    for _ in range(iterations):
        clock.begin_iter(None)
        clock.end_iter(None)
        fire()


def test_listeners_that_are_not_due_are_not_called_and_the_others_keep_their_places() -> None:
    seen, clock = Recorder(), Clock()
    two, three = every(2), every(3)
    fire = compiled(
        [seen.listener("a", schedule=two), seen.listener("b"), seen.listener("c", schedule=three), seen.listener("d")],
        clock,
    )
    iterate(fire, clock, 6)
    assert "".join(seen.names) == "bd" + "abd" + "bcd" + "abd" + "bd" + "abcd"


def test_where_none_is_due_the_schedules_are_not_even_looked_at(looks: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    many = [seen.listener(f"h{i}", schedule=every(100)) for i in range(30)]
    fire = compiled(many, clock)
    iterate(fire, clock, 250)
    assert len(seen.calls) == 60
    assert looks == [1, 100, 101, 200, 201]


def test_a_schedule_that_is_never_due_again_is_not_looked_at_again(looks: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    iterate(compiled([seen.listener("a", schedule=every(None))], clock), clock, 50)
    assert seen.calls == []
    assert looks == [1]


def test_last_is_looked_at_once_per_epoch_since_an_epoch_may_end_early(looks: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    clock.max_epochs, clock.epoch_length = 3, 10
    fire = compiled([seen.listener("a", schedule=last)], clock)
    for _ in range(3):
        clock.begin_epoch()
        iterate(fire, clock, 10)
        clock.end_epoch()
    assert seen.names == ["a"]
    assert looks == [1, 11, 21, 30]


def test_schedules_of_different_units_wait_for_one_number_each(looks: list[int]) -> None:
    seen, clock, pair = Recorder(), Clock(), torch.zeros(2)
    units = {"a": every(40), "b": every(30, unit="batch"), "c": every(60, unit="sample")}
    fire = compiled([seen.listener(name, schedule=schedule) for name, schedule in units.items()], clock)
    for _ in range(2):
        clock.begin_epoch()
        for _ in range(50):
            clock.begin_iter(pair)
            clock.end_iter(pair)
            fire()
        clock.end_epoch()
    assert seen.names == ["b", "c", "a", "c", "a", "b", "c"]
    assert looks == [1, 30, 31, 40, 41, 51, 60, 61, 80, 81, 90, 91]


def test_a_schedule_that_counts_in_two_units_is_looked_at_at_every_event(looks: list[int]) -> None:
    seen, clock = Recorder(), Clock()
    iterate(compiled([seen.listener("a", schedule=every(3) & every(2, unit="step"))], clock), clock, 6)
    assert seen.names == ["a"]
    assert looks == [1, 2, 3, 4, 5, 6]


def test_a_schedule_that_does_not_hold_names_its_hook_and_its_point_and_ends_the_run() -> None:
    seen, clock = Recorder(), Clock()
    with pytest.raises(ConfigError, match="hook 'a' at after_train_iter: when=last: the run has no known limit"):
        iterate(compiled([seen.listener("a", schedule=last)], clock, recover=lambda *_: False), clock, 1)


def test_a_hook_is_asked_whether_it_is_due_only_where_its_schedule_is() -> None:
    seen, clock, asked = Recorder(), Clock(), []

    def asks(index: int) -> bool:
        asked.append(index)
        return index != 3

    fire = compiled([seen.listener("a", schedule=every(2), asks=asks), seen.listener("b", asks=asks)], clock)
    iterate(fire, clock, 4)
    assert asked == [0, 1, 1, 2, 3, 3]
    assert seen.names == ["b", "a", "b", "b"]


# -- failures ------------------------------------------------------------------------------------------------


def go_on(error: Exception, raiser: Listener, clock: Clock, rest: Callable[[], None]) -> bool:
    rest()
    return False


@pytest.mark.parametrize("schedule", [None, every(2)])
def test_the_listeners_after_one_that_failed_are_called_with_the_same_arguments(schedule: Schedule | None) -> None:
    seen, clock = Recorder(), Clock()
    there = [
        seen.listener("a", schedule=schedule),
        seen.listener("b", raises=ValueError(), schedule=schedule),
        seen.listener("c", "batch", schedule=every(3)),
        seen.listener("d", "batch"),
        seen.listener("e", raises=KeyError()),
        seen.listener("f", "loss", schedule=every(2)),
    ]
    fire = compiled(there, clock, recover=go_on, finally_=["note(('end',))"], names={"note": seen.calls.append})
    clock.end_iter(None)
    clock.end_iter(None)
    fire(batch=5, loss=6)
    assert seen.calls == [("a",), ("b",), ("d", 5), ("e",), ("f", 6), ("end",)]


def test_a_failure_where_nothing_is_due_calls_nothing_that_is_not_due() -> None:
    seen, clock = Recorder(), Clock()
    there = [seen.listener("a", raises=ValueError()), seen.listener("b", schedule=every(2)), seen.listener("c")]
    fire = compiled(there, clock, recover=go_on)
    iterate(fire, clock, 1)
    seen.calls.clear()
    clock.iter = 0
    fire()
    assert seen.names == ["a", "c"]


def test_a_failure_costs_the_listeners_after_it_no_second_that_was_due() -> None:
    now = [0.0]
    seen, clock = Recorder(), Clock(timer=lambda: now[0])
    clock.start()
    there = [seen.listener("a", raises=ValueError()), seen.listener("b", schedule=every(10, unit="seconds"))]
    fire = compiled(there, clock, recover=go_on)
    for second in (1.0, 9.0, 11.0, 19.0, 21.0):
        now[0] = second
        iterate(fire, clock, 1)
    assert seen.names == ["a", "a", "a", "b", "a", "a", "b"]


def test_an_exception_goes_on_as_it_is_where_the_policy_says_so() -> None:
    seen, error = Recorder(), ValueError("mine")
    fire = compiled([seen.listener("a", raises=error), seen.listener("b")])
    with pytest.raises(ValueError, match="mine") as caught:
        fire()
    assert caught.value is error
    assert seen.names == ["a"]


def test_a_failure_of_the_bus_itself_is_nobodys() -> None:
    told: list[Listener] = []

    def recover(error: Exception, raiser: Listener, *_: Any) -> bool:
        told.append(raiser)
        return False

    fire = compiled([Recorder().listener("a", "loss")], fill={"loss": "1 / 0"}, recover=recover)
    with pytest.raises(ZeroDivisionError):
        fire()
    assert told == []
