"""Tests of the event bus: registration, emission and functions as listeners."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Priority, Trainer, every
from hookbus.errors import HookError, PointError, RegistrationError
from hookbus.lifecycle import Lifecycle


class Recorder(Hook):
    def __init__(self, seen: list[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.seen = seen

    def before_train(self) -> None:
        self.seen.append(self.name)


@pytest.fixture
def seen() -> list[str]:
    return []


# -- registration ----------------------------------------------------------------------------------------------


def test_bus_has_exactly_the_passed_hooks(seen: list[str]) -> None:
    assert HookBus().hooks == {}
    hooks = [Recorder(seen, name="b"), Recorder(seen, name="a")]
    assert HookBus(hooks).hooks == {"b": hooks[0], "a": hooks[1]}


def test_disabled_hook_is_not_registered(seen: list[str]) -> None:
    bus = HookBus([Recorder(seen, enabled=False)])
    assert bus.hooks == {}


def test_plugin_manager_does_not_register_a_disabled_hook(seen: list[str]) -> None:
    bus = HookBus()
    assert bus.pm.register(Recorder(seen, enabled=False)) is None
    bus.emit("before_train")
    assert seen == []
    assert bus.hooks == {}


def test_register_returns_the_hook_and_sets_its_name_and_run(seen: list[str]) -> None:
    bus, hook = HookBus(), Recorder(seen)
    with pytest.raises(RuntimeError, match="hook 'recorder': no run is available. Register the hook"):
        _ = hook.run
    assert hook.get_service("logger") is None
    assert bus.register(hook, "mine") is hook
    assert hook.get_service("logger") is bus.current.logger
    assert (hook.name, hook.run, hook.runner) == ("mine", bus.current, bus.current)
    bus.unregister(hook)
    with pytest.raises(RuntimeError, match="no run is available"):
        _ = hook.run


def test_unregister_accepts_the_hook_or_its_name(seen: list[str]) -> None:
    a, b = Recorder(seen, name="a"), Recorder(seen, name="b")
    bus = HookBus([a, b])
    assert bus.unregister(a) is a
    assert bus.unregister("b") is b
    bus.fire("before_train")
    assert seen == []


def test_unregister_raises_for_an_unregistered_hook(seen: list[str]) -> None:
    bus = HookBus([Recorder(seen, name="checkpoint")])
    with pytest.raises(HookError, match="'chekpoint' is not registered. Did you mean 'checkpoint'?"):
        bus.unregister("chekpoint")
    with pytest.raises(HookError, match="is not registered"):
        bus.unregister(Recorder(seen))


def test_plugin_manager_methods_take_effect_on_the_bus(seen: list[str]) -> None:
    bus = HookBus()
    a, b = Recorder(seen, name="a"), Recorder(seen, name="b")
    assert bus.pm.register(a) == "a"
    bus.pm.register(b)
    bus.fire("before_train")
    bus.pm.unregister(name="a")
    bus.fire("before_train")
    bus.pm.set_blocked("b")
    bus.fire("before_train")
    assert seen == ["a", "b", "b"]
    assert bus.hooks == {}
    assert bus.pm.register(b) is None
    assert bus.register(b) is b
    assert bus.hooks == {}
    bus.pm.unblock("b")
    bus.register(b)
    bus.fire("before_train")
    assert seen[3:] == ["b"]


def test_plugin_manager_register_validates_plugins() -> None:
    class Invalid(Hook):
        def after_trian_iter(self) -> None: ...

    bus = HookBus()
    with pytest.raises(RegistrationError, match="unknown point after_trian_iter"):
        bus.pm.register(Invalid())
    assert bus.pm.list_name_plugin() == []


def test_unregister_removes_the_hook_completely(seen: list[str]) -> None:
    bus = HookBus()
    before = bus.explain()
    bus.register(Recorder(seen), "a", priority=Priority.HIGHEST)
    bus.unregister("a")
    assert bus.explain() == before
    bus.register(Recorder(seen), "a")
    assert bus.explain().points["before_train"][0].source == "class Recorder"


# -- during an event -------------------------------------------------------------------------------------------


def test_unregistering_itself_does_not_skip_the_next_listener(seen: list[str]) -> None:
    bus: Any = HookBus()

    def a() -> None:
        seen.append("a")
        bus.unregister("a")

    bus.on("before_train", name="a")(a)
    bus.on("before_train", name="b")(lambda: seen.append("b"))
    bus.on("before_train", name="c")(lambda: seen.append("c"))
    bus.emit("before_train")
    assert seen == ["a", "b", "c"]
    bus.emit("before_train")
    assert seen == ["a", "b", "c", "b", "c"]


@pytest.mark.parametrize("fire", ["emit", "fire"])
def test_changes_during_an_event_take_effect_at_the_next_event(seen: list[str], fire: str) -> None:
    bus: Any = HookBus()

    def first() -> None:
        seen.append("first")
        if "last" in bus.hooks:
            bus.unregister("last")
            bus.register(Recorder(seen), "new")

    bus.on("before_train", name="first")(first)
    bus.on("before_train", name="last")(lambda: seen.append("last"))
    getattr(bus, fire)("before_train")
    assert seen == ["first", "last"]
    getattr(bus, fire)("before_train")
    assert seen == ["first", "last", "first", "new"]


class Releasing(Hook):
    """Hook that records its cleanup."""

    def __init__(self, seen: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.seen = seen

    def cleanup(self, run: Any) -> None:
        assert self.run is run
        self.seen.append(f"{self.name} is cleaned up in iteration {run.iters_done}")


def test_unregistering_within_a_run_calls_cleanup_exactly_once(seen: list[str]) -> None:
    bus = HookBus([Releasing(seen, name="leaves"), Releasing(seen, name="stays")])
    with bus.run(iterations=2) as run:
        for i, _ in enumerate(run.batches([1, 2])):
            if i == 1:
                bus.unregister("leaves")
            bus.emit("after_train_iter")
        assert seen == ["leaves is cleaned up in iteration 1"]
    assert seen == ["leaves is cleaned up in iteration 1", "stays is cleaned up in iteration 2"]
    bus.unregister("stays")
    assert len(seen) == 2


class Active(Releasing):
    """Hook that uses its run in every event."""

    def after_train_iter(self, run: Any) -> None:
        assert self.run is run
        self.seen.append(f"{self.name} is called")

    after_run = after_train_iter


@pytest.mark.parametrize("point", ["after_train_iter", "after_run"])
def test_hook_unregistered_during_an_event_is_cleaned_up_after_it(seen: list[str], point: str) -> None:
    bus: Any = HookBus([Active(seen, name="leaves")])

    @bus.on(point, priority=Priority.LOWEST)
    def remove() -> None:
        if "leaves" in bus.hooks:
            bus.unregister("leaves")
            seen.append("removed")

    with bus.run(iterations=1) as run:
        for _ in run.batches([1]):
            bus.emit("after_train_iter")
    assert seen[-3:] == ["removed", "leaves is called", "leaves is cleaned up in iteration 1"]


def test_hook_registered_again_during_an_event_keeps_its_run(seen: list[str]) -> None:
    hook = Releasing(seen, name="back")
    bus: Any = HookBus([hook])

    @bus.on("after_train_iter")
    def swap() -> None:
        bus.register(bus.unregister(hook))

    with bus.run(iterations=1) as run:
        for _ in run.batches([1]):
            bus.emit("after_train_iter")
        assert hook.run is run


def test_failing_cleanup_does_not_prevent_unregistration() -> None:
    class Failing(Hook):
        def cleanup(self) -> None:
            raise OSError("no")

    bus = HookBus([Failing(name="failing")])
    with bus.run():
        with pytest.raises(OSError, match="no"):
            bus.unregister("failing")
        assert bus.hooks == {}


def test_hook_registered_within_a_run_has_the_run(seen: list[str]) -> None:
    bus: Any = HookBus()
    with bus.run() as run:
        hook = Recorder(seen)
        bus.register(hook)
        assert hook.run is run


# -- functions -------------------------------------------------------------------------------------------------


def test_decorated_function_listens_with_options_and_stays_callable(seen: list[str]) -> None:
    bus: Any = HookBus()

    @bus.on("after_train_iter", when=every(2), priority=7, before="x", after=["y"])
    def report(run: Any, loss: float) -> None:
        seen.append(f"{run.iter} {loss}")

    (row,) = bus.explain().points["after_train_iter"]
    name = f"{__name__}.{report.__qualname__}"
    assert (row.hook, row.priority, row.source, row.when) == (name, 7, "@hookimpl", "every(2)")
    assert (row.before, row.after) == (("(x: absent)",), ("(y: absent)",))
    for loss in (1.0, 2.0, 3.0, 4.0):
        bus.emit("after_train_iter", loss=loss)
    assert seen == ["1 2.0", "3 4.0"]
    report(bus.current, 9.0)
    assert seen[-1] == "3 9.0"


def test_function_at_several_points_is_unregistered_from_all(seen: list[str]) -> None:
    bus: Any = HookBus()

    @bus.on("before_step")
    @bus.on("before_train")
    @bus.on("after_train")
    def note(run: Any) -> None:
        seen.append("called")

    name = f"{__name__}.{note.__qualname__}"
    assert list(bus.hooks) == [name, f"{name}@before_train", f"{name}@before_train_iter"]
    for point in ("before_train", "before_train_iter", "after_train"):
        bus.emit(point)
    assert len(seen) == 3
    assert bus.unregister(note) is note
    assert bus.hooks == {}


def test_registering_a_function_twice_at_one_point_raises() -> None:
    bus: Any = HookBus()

    def note(run: Any) -> None: ...

    bus.on("before_train")(note)
    with pytest.raises(RegistrationError, match="a hook with this name is already registered"):
        bus.on("before_training")(note)
    bus.on("after_train")(note)
    with pytest.raises(RegistrationError, match="a hook with this name is already registered"):
        bus.on("after_train")(note)
    bus.on("before_train", name="second")(note)
    assert len(bus.hooks) == 3


def test_functions_with_the_same_name_require_instance_names(seen: list[str]) -> None:
    bus: Any = HookBus()
    bus.on("before_train")(lambda: seen.append("one"))
    with pytest.raises(RegistrationError, match="Set another `name`"):
        bus.on("before_train")(lambda: seen.append("two"))
    bus.on("before_train", name="two")(lambda: seen.append("two"))
    bus.emit("before_train")
    assert seen == ["one", "two"]


def test_bound_method_can_be_registered_and_unregistered(seen: list[str]) -> None:
    class Thing:
        def note(self) -> None:
            seen.append("thing")

    bus: Any = HookBus()
    thing = Thing()
    bus.on("before_train")(thing.note)
    bus.emit("before_train")
    bus.unregister(thing.note)
    bus.emit("before_train")
    assert seen == ["thing"]


def test_invalid_function_raises_with_its_name() -> None:
    bus: Any = HookBus()

    def report(run: Any, losss: float) -> None: ...

    with pytest.raises(RegistrationError) as caught:
        bus.on("after_train_iter")(report)
    message = str(caught.value)
    assert f"hook {f'{__name__}.{report.__qualname__}'!r}" in message
    assert "report(run: 'Any', losss: 'float') -> 'None': unknown argument 'losss'" in message
    with pytest.raises(RegistrationError, match="unknown point epoch_edn. Available: .*after_epoch"):
        bus.on("epoch_edn")(report)
    with pytest.raises(RegistrationError, match=r"bus.on\('before_train'\): expected a function, got 3"):
        bus.on("before_train")(3)
    assert bus.hooks == {}


def test_constraints_apply_to_functions(seen: list[str]) -> None:
    bus: Any = HookBus()
    bus.on("after_epoch", name="a", priority=0, after="c")(lambda: seen.append("a"))
    bus.on("after_epoch", name="b", priority=50)(lambda: seen.append("b"))
    bus.on("after_epoch", name="c", priority=10)(lambda: seen.append("c"))
    bus.emit("after_epoch")
    assert seen == ["b", "c", "a"]


# -- invalid arguments and edge cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("hooks", [Recorder([]), None, "ema", {"ema": 1}, Recorder])
def test_invalid_list_of_hooks_raises(hooks: Any) -> None:
    for build in (HookBus, lambda hooks: Trainer(torch.nn.Linear(1, 1), hooks=hooks)):
        with pytest.raises(RegistrationError, match=r"hooks: expected a list of hooks, got .*\. Pass hooks=\[\.\.\.\]"):
            build(hooks)


@pytest.mark.parametrize("point", [None, 3, "", Lifecycle.after_train_iter])
def test_bus_on_raises_for_an_invalid_point_name(point: Any) -> None:
    with pytest.raises(RegistrationError, match=r"bus.on: invalid point name, got"):
        HookBus().on(point)


@pytest.mark.parametrize("point", [None, 3, Lifecycle.after_train_iter])
def test_emit_raises_for_an_invalid_point_name(point: Any) -> None:
    bus: Any = HookBus()
    with pytest.raises(PointError, match=r"bus.emit: invalid point name, got"):
        bus.emit(point)


def test_register_raises_for_invalid_names_and_priorities(seen: list[str]) -> None:
    bus: Any = HookBus()
    with pytest.raises(RegistrationError, match="expected the name to be a string, got 3"):
        bus.register(Recorder(seen), 3)
    with pytest.raises(RegistrationError, match="invalid priority, got True"):
        bus.register(Recorder(seen), priority=True)


@pytest.mark.parametrize("name", ["get", "invalidate"])
def test_declaring_a_reserved_attribute_name_raises(name: str) -> None:
    with pytest.raises(PointError, match=f"'{name}' is reserved for an alias, an action, or an attribute of the bus"):
        HookBus().declare(name)


def test_hook_used_by_an_active_run_of_another_bus_raises(seen: list[str]) -> None:
    hook = Recorder(seen)
    first, second = HookBus([hook]), HookBus([hook])
    problem = "hook 'recorder' is used by an active run of another bus"
    with first.run(epochs=1) as run:
        with pytest.raises(HookError, match=problem), second.run(epochs=1):
            pass
        with pytest.raises(HookError, match=problem):
            HookBus([hook])
        assert hook.run is run
    with second.run(epochs=1) as run:
        assert hook.run is run


def test_unregistered_hook_is_garbage_collected(seen: list[str]) -> None:
    hook = Recorder(seen)
    bus = HookBus([hook])
    bus.emit("before_train")
    bus.unregister(hook)
    reference = weakref.ref(hook)
    del hook
    gc.collect()
    assert reference() is None


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Switch threads after a few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("eager_threads")
def test_threads_may_emit_while_hooks_are_registered() -> None:
    bus: Any = HookBus()
    bus.declare("after_work")
    counts: list[int] = []

    def work(number: int) -> None:
        calls: list[int] = []
        bus.on("after_work", name=f"own {number}")(lambda: calls.append(threading.get_ident()))
        for i in range(100):
            bus.on("before_train", name=f"{number} {i}")(lambda: None)
            bus.emit("after_work")
            bus.unregister(f"{number} {i}")
        counts.append(calls.count(threading.get_ident()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [100] * 4


def test_request_does_not_keep_variables_of_the_loop_alive(seen: list[str]) -> None:
    bus = HookBus([Recorder(seen)])
    with bus.run(validate=dict, epochs=1) as run:
        activation = torch.ones(1)
        reference = weakref.ref(activation)
        run.request_validation()
        del activation
        assert reference() is None
