"""Tests of the registered plugins, which are compared by identity."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus.errors import HookError, HookNotFoundError

called: list[str] = []


@dataclass
class Equal:
    """Plugin whose instances are equal, not hashable, and false in a boolean context."""

    name: str

    @hookimpl
    def before_train(self, run: Any) -> None:
        called.append(self.name)

    def __eq__(self, other: object) -> bool:
        return True

    def __len__(self) -> int:
        return 0


@pytest.fixture
def bus() -> HookBus:
    called.clear()
    bus = HookBus()
    for name in "abc":
        bus.register(Equal(name), name)
    return bus


def test_equal_objects_are_registered_separately(bus: HookBus) -> None:
    bus.fire("before_train")
    assert called == ["a", "b", "c"]


def test_unregister_compares_by_identity(bus: HookBus) -> None:
    second = bus.hooks["b"]
    bus.unregister(second)
    bus.fire("before_train")
    assert called == ["a", "c"]
    assert bus.pm.get_name(second) is None
    with pytest.raises(HookError, match="is not registered"):
        bus.unregister(Equal("a"))


def test_unknown_name_is_an_error_with_close_matches(bus: HookBus) -> None:
    bus.register(Equal("d"), "checkpoint")
    with pytest.raises(HookNotFoundError) as raised:
        bus.hooks["chekpoint"]
    assert str(raised.value) == "bus.hooks: no hook has this name, got 'chekpoint'. Did you mean 'checkpoint'?"
    assert isinstance(raised.value, KeyError)
    with pytest.raises(HookNotFoundError, match="got 'ema'. No hook is registered."):
        HookBus().hooks["ema"]
    assert bus.hooks.get("ema") is None


def test_plugin_manager_returns_the_plugins_themselves(bus: HookBus) -> None:
    manager, first = bus.pm, bus.hooks["a"]
    assert manager.get_plugin("a") is first
    assert manager.get_plugin("z") is None
    assert manager.has_plugin("a")
    assert manager.get_name(first) == "a"
    assert manager.is_registered(first)
    assert not manager.is_registered(Equal("a"))
    assert [name for name, _ in manager.list_name_plugin()] == ["a", "b", "c"]
    assert all(plugin is bus.hooks[name] for name, plugin in manager.list_name_plugin())
    assert [caller.name for caller in manager.get_hookcallers(first)] == ["before_train"]
    assert manager.get_hookcallers(Equal("a")) is None


def test_get_plugins_returns_the_registered_plugins() -> None:
    hooks = [Hook(name="a"), Hook(name="b")]
    assert HookBus(hooks).pm.get_plugins() == set(hooks)


def test_unregister_with_a_mismatched_name_raises(bus: HookBus) -> None:
    with pytest.raises(HookError, match="'a' is not the name of"):
        bus.pm.unregister(bus.hooks["b"], "a")
    assert list(bus.hooks) == ["a", "b", "c"]
    assert bus.pm.unregister(name="z") is None
    with pytest.raises(AssertionError, match="plugin is not registered"):
        bus.pm.unregister(Equal("z"))


def test_pluggy_caller_reaches_the_plugins(bus: HookBus) -> None:
    bus.pm.hook.before_train(run=None, model=None, runner=None)
    assert called == ["c", "b", "a"]


def test_hook_is_found_from_the_frames_of_its_callers() -> None:
    bus: Any = HookBus()
    names: list[str | None] = []

    class Looking(Hook):
        def look(self) -> None:
            look()

    def look() -> None:
        names.append(bus.pm.members.hook_in_frame(sys._getframe()))

    hook, stranger = Looking(name="mine"), Looking(name="stranger")
    bus.register(hook)
    hook.look()
    stranger.look()
    look()
    assert names == ["mine", None, None]


class Caller:
    """Plugin that calls a function."""

    @hookimpl
    def before_train(self, run: Any) -> None:
        self.call(run.bus.pm.members.find_caller)

    def call(self, function: Any) -> None:
        """Call a function within a nested one."""

        def nested() -> None:
            called.append(function())

        nested()


def test_calling_plugin_is_found_by_its_listener_or_its_method() -> None:
    called.clear()
    bus, first, second = HookBus(), Caller(), Caller()
    for name, plugin in (("first", first), ("second", second)):
        bus.register(plugin, name)
    bus.fire("before_train")
    second.call(bus.pm.members.find_caller)
    bus.unregister(second)
    second.call(bus.pm.members.find_caller)
    first.call(bus.pm.members.find_caller)
    assert called == ["first", "second", "second", "", "first"]


def test_registration_calls_as_many_functions_for_many_hooks_as_for_few() -> None:
    class Listener(Hook):
        def before_train(self) -> None: ...

    def count_calls(bus: HookBus) -> int:
        calls: list[str] = []
        hook = Listener(name="last")
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        try:
            bus.register(hook)
        finally:
            sys.setprofile(None)
        return calls.count("call")

    few, many = (HookBus(Listener(name=str(i)) for i in range(count)) for count in (10, 100))
    assert count_calls(many) <= count_calls(few) + 20


def test_registration_during_a_loop_over_implementations_does_not_affect_it(bus: HookBus) -> None:
    implementations = bus.pm.members.implementations("before_train")
    next(implementations)
    bus.register(Equal("d"), "d")  # another thread may do this
    assert len(list(implementations)) == 2
