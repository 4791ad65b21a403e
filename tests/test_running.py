"""Compiled functions with listeners that look around while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hookbus._running import asking, failed, nested
from hookbus.clock import Clock
from hookbus.dispatch.compiling import Listener, compile_point
from hookbus.lifecycle import POINTS, Point


def no_recovery(*_: Any) -> bool:
    return True


def compiled(listeners: list[Listener], point: Point | None = None, **options: Any) -> Callable[..., None]:
    settings: dict[str, Any] = {"run": None, "fill": {}, "names": {}, "recover": no_recovery, **options}
    return compile_point(point or POINTS["after_train_iter"], listeners, Clock(), **settings)


def test_the_listener_that_failed_is_found_from_the_traceback() -> None:
    def fail() -> None:
        raise ValueError

    there = [Listener("a", None, "after_train_iter", list, ()), Listener("b", None, "after_train_iter", fail, ())]
    found: list[Listener | None] = []

    def recover(error: Exception, raiser: Listener, *_: Any) -> bool:
        found.append(failed(error))
        return False

    compiled(there, recover=recover)()
    assert found == [there[1]]
    assert failed(ValueError()) is None


def test_the_innermost_running_listener_is_the_one_that_asks() -> None:
    seen: list[str | None] = []

    def ask() -> None:
        found = asking()
        seen.append(found.hook if found else None)

    inner = compiled([Listener("inner", None, "after_train_iter", ask, ())])

    def outer() -> None:
        ask()
        inner()
        ask()

    fire = compiled([Listener("outer", None, "after_train_iter", outer, ())], finally_=["ask()"], names={"ask": ask})
    ask()
    fire()
    assert seen == [None, "outer", "inner", "outer", None]


def test_another_thread_asks_for_itself() -> None:
    seen: list[Listener | None] = []

    def start() -> None:
        thread = threading.Thread(target=lambda: seen.append(asking()))
        thread.start()
        thread.join()

    compiled([Listener("a", None, "after_train_iter", start, ())])()
    assert seen == [None]


def test_events_are_nested_within_one_run_and_not_across_runs() -> None:
    seen: list[tuple[str, bool]] = []
    ours, theirs = object(), object()

    def look(where: str) -> Callable[[], None]:
        return lambda: seen.append((where, nested(ours)))

    def fire(run: object, where: str, inside: Callable[[], None] = lambda: None) -> Callable[[], None]:
        both = Listener("a", None, "cleanup", lambda: (look(where)(), inside()), ())
        return compiled([both], point=POINTS["cleanup"], run=run)

    look("outside")()
    fire(ours, "alone")()
    fire(ours, "outer", fire(ours, "inner"))()
    fire(theirs, "of another run", fire(ours, "inside another run"))()
    assert seen == [
        ("outside", False),
        ("alone", False),
        ("outer", False),
        ("inner", True),
        ("of another run", False),
        ("inside another run", False),
    ]
