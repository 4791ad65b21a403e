"""Tests of `bus.explain()`."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, HookBus, HookConfig, Priority, every, hookimpl
from hookbus._events.explain import Row

PACKAGE = f"module {__name__}"


class Settings(HookConfig):
    interval: int = 5


class Logger(Hook):
    Config = Settings

    @hookimpl(when=every("interval"), before="eval", after=["ema", "ghost"])
    def after_epoch(self) -> None: ...


class EMA(Hook):
    priority = Priority.ABOVE_NORMAL

    @hookimpl(priority=3)
    def before_epoch(self) -> None: ...

    def after_epoch(self) -> None: ...

    def should_trigger(self, step: int) -> bool:
        return True

    def after_train_iter(self) -> None: ...


class Eval(Hook):
    def after_train(self) -> None: ...


def bus() -> HookBus:
    bus = HookBus([Logger(priority=20), EMA(name="ema", frequency=2), Eval()])
    bus.on("after_epoch", name="mine")(lambda: None)
    bus.register(Eval(name="other"), priority=7)
    return bus


def test_listeners_are_shown_in_execution_order_with_priority_source() -> None:
    explanation = bus().explain()
    assert explanation.order == "nested"
    assert list(explanation.points) == ["before_epoch", "after_train_iter", "after_epoch", "after_train"]
    assert explanation.points["after_epoch"] == [
        Row("mine", PACKAGE, 50, "default"),
        Row("ema", PACKAGE, 40, "class EMA", "should_trigger"),
        Row("logger", PACKAGE, 20, "config", "every(5)", ("(eval: absent)",), ("ema", "(ghost: absent)")),
    ]
    assert explanation.points["before_epoch"] == [Row("ema", PACKAGE, 3, "@hookimpl", "should_trigger")]
    assert explanation.points["after_train_iter"] == [Row("ema", PACKAGE, 40, "class EMA", "every(2) & should_trigger")]
    assert [(row.hook, row.priority, row.source) for row in explanation.points["after_train"]] == [
        ("eval", 50, "class Eval"),
        ("other", 7, "register(priority=)"),
    ]


def test_listener_that_is_never_due_is_shown_as_never() -> None:
    bus = HookBus()
    bus.on("after_epoch", name="mine", when=every(None, unit="epoch"))(lambda: None)
    assert bus.explain().points["after_epoch"] == [Row("mine", PACKAGE, 50, "default", "never")]


def test_explanation_is_printed_as_a_list() -> None:
    assert str(bus().explain()).splitlines() == [
        "order: nested",
        "before_epoch",
        "     3  ema  (@hookimpl)  when should_trigger",
        "after_train_iter",
        "    40  ema  (class EMA)  when every(2) & should_trigger",
        "after_epoch",
        "    50  mine  (default)",
        "    40  ema  (class EMA)  when should_trigger",
        "    20  logger  (config)  when every(5); before (eval: absent); after ema, (ghost: absent)",
        "after_train",
        "    50  eval  (class Eval)",
        "     7  other  (register(priority=))",
    ]


def test_explanation_matches_the_execution_order() -> None:
    called: list[str] = []
    ascending: Any = HookBus(order="ascending")
    for name, number in (("a", 50), ("b", 10), ("c", 90)):
        ascending.on("after_epoch", name=name, priority=number)(recording(called, name))
    ascending.fire("after_epoch")
    explanation = ascending.explain()
    assert explanation.order == "ascending"
    assert called == [row.hook for row in explanation.points["after_epoch"]] == ["b", "a", "c"]


def recording(called: list[str], name: str) -> Any:
    return lambda: called.append(name)


def test_explain_does_not_modify_the_bus() -> None:
    explained = bus()
    assert explained.explain() == explained.explain()
    assert HookBus().explain().points == {}
