"""Tests of the lookup of the running listener in generated functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hookbus import HookBus
from hookbus._events.call_stack import current_listener, failing_listener, find_caller, in_nested_event
from hookbus._events.codegen import compile_point
from hookbus._events.ordering import Listener
from hookbus._events.points import Point
from hookbus._run.clock import Clock
from hookbus._run.point_counters import PointCounters
from hookbus.errors import HookbusError
from hookbus.lifecycle import POINTS


def propagate(*_: Any) -> bool:
    return True


def compiled(listeners: list[Listener], point: Point | None = None, **options: Any) -> Callable[..., None]:
    settings: dict[str, Any] = {
        "run": None,
        "default_arguments": {},
        "namespace": {},
        "handle_exception": propagate,
        **options,
    }
    point = point or POINTS["after_train_iter"]
    return compile_point(point, listeners, Clock(), counter_view=PointCounters, **settings)


def test_failing_listener_is_found_from_the_traceback() -> None:
    def fail() -> None:
        raise ValueError

    listeners = [Listener("a", None, "after_train_iter", list, ()), Listener("b", None, "after_train_iter", fail, ())]
    raisers: list[Listener | None] = []

    def handle_exception(error: Exception, raiser: Listener, *_: Any) -> bool:
        raisers.append(failing_listener(error))
        return False

    compiled(listeners, handle_exception=handle_exception)()
    assert raisers == [listeners[1]]
    assert failing_listener(ValueError()) is None


def test_current_listener_is_the_innermost_running_one() -> None:
    seen: list[str | None] = []

    def ask() -> None:
        listener = current_listener()
        seen.append(listener.hook if listener else None)

    inner = compiled([Listener("inner", None, "after_train_iter", ask, ())])

    def outer() -> None:
        ask()
        inner()
        ask()

    fire = compiled(
        [Listener("outer", None, "after_train_iter", outer, ())], epilogue=["ask()"], namespace={"ask": ask}
    )
    ask()
    fire()
    assert seen == [None, "outer", "inner", "outer", None]


def test_current_listener_is_none_in_another_thread() -> None:
    seen: list[Listener | None] = []

    def start() -> None:
        thread = threading.Thread(target=lambda: seen.append(current_listener()))
        thread.start()
        thread.join()

    compiled([Listener("a", None, "after_train_iter", start, ())])()
    assert seen == [None]


def test_events_are_nested_within_one_run_only() -> None:
    seen: list[tuple[str, bool]] = []
    run, other_run = object(), object()

    def record(where: str) -> Callable[[], None]:
        return lambda: seen.append((where, in_nested_event(run)))

    def fire(event_run: object, where: str, inside: Callable[[], None] = lambda: None) -> Callable[[], None]:
        both = Listener("a", None, "cleanup", lambda: (record(where)(), inside()), ())
        return compiled([both], point=POINTS["cleanup"], run=event_run)

    record("outside")()
    fire(run, "alone")()
    fire(run, "outer", fire(run, "inner"))()
    fire(other_run, "of another run", fire(run, "inside another run"))()
    assert seen == [
        ("outside", False),
        ("alone", False),
        ("outer", False),
        ("inner", True),
        ("of another run", False),
        ("inside another run", False),
    ]


@pytest.mark.parametrize("filename", ["<string>", "<ipython-input-1>", "train.py"])
def test_caller_is_the_code_outside_of_hookbus(filename: str) -> None:
    called: dict[str, Any] = {"find_caller": find_caller}
    exec(compile("\nplace = find_caller()", filename, "exec"), called)

    assert called["place"] == f"{filename}:2"


def test_second_event_in_code_without_a_file_is_reported() -> None:
    source = "with bus.run(epochs=1):\n    bus.emit('before_train_epoch')\n    bus.emit('before_train_epoch')\n"
    with pytest.raises(HookbusError, match="<string>:3"):
        exec(compile(source, "<string>", "exec"), {"bus": HookBus()})
