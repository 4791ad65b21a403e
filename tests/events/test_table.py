"""Tests of the dispatch tables: compiled functions, orders and active hooks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus.errors import ConfigError, OrderError
from hookbus.testing import RecordingBus


class Named(Hook):
    """Hook that records its name at every point."""

    called: ClassVar[list[str]] = []

    def before_train(self) -> None:
        self.called.append(self.name)

    def log_text(self) -> None:
        self.called.append(self.name)

    def after_train(self) -> None:
        self.called.append(self.name)

    def cleanup(self) -> None:
        self.called.append(self.name)


def order_at(bus: HookBus, point: str) -> str:
    Named.called.clear()
    bus.fire(point)
    return "".join(Named.called)


def named(*priorities: tuple[str, int]) -> list[Named]:
    return [Named(name=name, priority=priority) for name, priority in priorities]


def test_nested_order_reverses_after_points() -> None:
    bus = HookBus(named(("a", 50), ("b", 10), ("c", 90), ("d", 50)))
    assert order_at(bus, "before_train") == "badc"
    assert order_at(bus, "log_text") == "badc"
    assert order_at(bus, "after_train") == "cdab"
    assert order_at(bus, "cleanup") == "cdab"


def test_ascending_order_runs_every_point_by_ascending_priority() -> None:
    bus = HookBus(named(("a", 50), ("b", 10), ("c", 90), ("d", 50)), order="ascending")
    for point in ("before_train", "log_text", "after_train", "cleanup"):
        assert order_at(bus, point) == "badc"


def test_unknown_order_raises() -> None:
    with pytest.raises(ConfigError, match="order: invalid value, got 'random'. Set 'nested' or 'ascending'."):
        HookBus(order="random")  # type: ignore[arg-type]


def test_ties_keep_registration_order_across_events() -> None:
    bus = HookBus(named(("a", 50), ("b", 50), ("c", 50)))
    assert {order_at(bus, "before_train") for _ in range(100)} == {"abc"}
    assert {order_at(bus, "after_train") for _ in range(100)} == {"cba"}


def test_order_depends_on_priority_only_for_every_kind_of_registration() -> None:
    bus: Any = HookBus([Named({"name": "file", "priority": 30})])
    bus.pm.register(Named(name="pluggy", priority=10))
    bus.on("before_train", priority=20, name="code")(lambda: Named.called.append("code"))
    Named.called.clear()
    bus.fire("before_train")
    assert Named.called == ["pluggy", "code", "file"]
    rows = bus.explain().points["before_train"]
    assert [(row.hook, row.priority) for row in rows] == [("pluggy", 10), ("code", 20), ("file", 30)]


def test_calls_and_emit_reach_listeners_with_the_same_arguments() -> None:
    by_call: Any = RecordingBus()
    by_emit: Any = RecordingBus()
    batch, outputs = [1, 2], {"loss": 0.5}
    for _ in range(3):
        by_call.calls.before_train_iter(batch=batch)
        by_call.calls.after_train_iter(batch=batch, outputs=outputs)
        by_emit.emit("before_train_iter", batch=batch)
        by_emit.emit("after_train_iter", batch=batch, outputs=outputs)
    assert by_call.events == by_emit.events
    assert len(by_call.events) == 6


def test_point_without_listeners_and_statements_compiles_to_none() -> None:
    bus = HookBus()
    assert bus.calls.get("after_forward") is None
    assert bus.calls.get("log_scalars") is None
    assert bus.calls.get("after_train_iter") is not None
    bus.on("after_forward")(lambda: None)
    assert bus.calls.get("after_forward") is not None


def test_first_call_stores_the_compiled_function() -> None:
    bus, seen = HookBus(), []
    bus.calls.after_forward(loss=1)
    assert bus.calls.after_forward is None
    bus.on("after_forward")(lambda loss: seen.append(loss))
    bus.calls.after_forward(loss=2)
    compiled = bus.calls.after_forward
    bus.calls.after_forward(loss=3)
    assert seen == [2, 3]
    assert bus.calls.get("after_forward") is compiled
    assert bus.calls.after_forward is compiled


def test_custom_point_is_called_like_a_built_in_point() -> None:
    bus, seen = HookBus(), []
    bus.declare("after_render", args=("image",))
    bus.on("after_render")(lambda image: seen.append(image))
    bus.calls.after_render(image=4)
    assert seen == [4]


def test_unknown_point_raises_attribute_error() -> None:
    bus = HookBus()
    with pytest.raises(AttributeError, match="after_forwrad"):
        bus.calls.get("after_forwrad")
    with pytest.raises(AttributeError, match="after_forwrad"):
        _ = bus.calls.after_forwrad


def test_functions_are_compiled_once_until_the_registration_changes() -> None:
    bus = HookBus([Named()])
    first = bus.calls.get("before_train")
    assert bus.calls.get("before_train") is first
    bus.register(Named(name="other"))
    assert bus.calls.get("before_train") is not first


def test_main_rank_hook_is_not_called_on_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Main(Named):
        ranks = "main"

    bus = HookBus([Main(name="m"), Named(name="a")])
    assert order_at(bus, "before_train") == "ma"
    monkeypatch.setenv("RANK", "1")
    bus.invalidate()
    assert order_at(bus, "before_train") == "a"


def test_constraint_cycle_raises_when_the_run_starts() -> None:
    class First(Hook):
        @hookimpl(before="b")
        def after_val(self) -> None: ...

    class Second(Hook):
        @hookimpl(before="a")
        def after_val(self) -> None: ...

    bus = HookBus([First(name="a"), Second(name="b")])
    with pytest.raises(
        OrderError, match="after_val: before=/after= constraints form a cycle: 'b' before 'a' before 'b'"
    ):
        bus.run().__enter__()
    with pytest.raises(OrderError, match="after_val"):
        bus.explain()
