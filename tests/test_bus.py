"""The bus: members come and go, points are declared, functions listen."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Priority, Trainer, every
from hookbus.errors import HookError, PointError, RegistrationError
from hookbus.lifecycle import Lifecycle


class Noting(Hook):
    def __init__(self, seen: list[str], **settings: Any) -> None:
        super().__init__(**settings)
        self.seen = seen

    def before_train(self) -> None:
        self.seen.append(self.name)


@pytest.fixture
def seen() -> list[str]:
    return []


# -- members ---------------------------------------------------------------------------------------------------


def test_a_bare_bus_has_exactly_the_hooks_it_was_given(seen: list[str]) -> None:
    assert HookBus().hooks == {}
    hooks = [Noting(seen, name="b"), Noting(seen, name="a")]
    assert HookBus(hooks).hooks == {"b": hooks[0], "a": hooks[1]}


def test_a_disabled_hook_is_left_out(seen: list[str]) -> None:
    bus = HookBus([Noting(seen, enabled=False)])
    assert bus.hooks == {}


def test_register_gives_the_hook_back_and_tells_it_its_name_and_its_run(seen: list[str]) -> None:
    bus, hook = HookBus(), Noting(seen)
    with pytest.raises(RuntimeError, match="hook 'noting': no run is available. Register the hook"):
        _ = hook.run
    assert bus.register(hook, "mine") is hook
    assert (hook.name, hook.run, hook.runner) == ("mine", bus.current, bus.current)
    bus.unregister(hook)
    with pytest.raises(RuntimeError, match="no run is available"):
        _ = hook.run


def test_unregister_takes_the_hook_or_its_name(seen: list[str]) -> None:
    a, b = Noting(seen, name="a"), Noting(seen, name="b")
    bus = HookBus([a, b])
    assert bus.unregister(a) is a
    assert bus.unregister("b") is b
    bus.fire("before_train")
    assert seen == []


def test_what_is_not_registered_cannot_be_unregistered(seen: list[str]) -> None:
    bus = HookBus([Noting(seen, name="checkpoint")])
    with pytest.raises(HookError, match="'chekpoint' is not registered. Did you mean 'checkpoint'?"):
        bus.unregister("chekpoint")
    with pytest.raises(HookError, match="is not registered"):
        bus.unregister(Noting(seen))


def test_pluggys_register_unregister_and_set_blocked_take_effect(seen: list[str]) -> None:
    bus = HookBus()
    a, b = Noting(seen, name="a"), Noting(seen, name="b")
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


def test_pluggys_register_refuses_what_the_bus_refuses() -> None:
    class Wrong(Hook):
        def after_trian_iter(self) -> None: ...

    bus = HookBus()
    with pytest.raises(RegistrationError, match="unknown point after_trian_iter"):
        bus.pm.register(Wrong())
    assert bus.pm.list_name_plugin() == []


def test_nothing_of_a_hook_is_left_behind_when_it_leaves(seen: list[str]) -> None:
    bus = HookBus()
    before = bus.explain()
    bus.register(Noting(seen), "a", priority=Priority.HIGHEST)
    bus.unregister("a")
    assert bus.explain() == before
    bus.register(Noting(seen), "a")
    assert bus.explain().points["before_train"][0].source == "class Noting"


# -- during an event -------------------------------------------------------------------------------------------


def test_one_that_leaves_during_an_event_does_not_take_the_next_with_it(seen: list[str]) -> None:
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
def test_one_that_leaves_or_comes_takes_effect_at_the_next_event(seen: list[str], fire: str) -> None:
    bus: Any = HookBus()

    def first() -> None:
        seen.append("first")
        bus.unregister("last")
        bus.register(Noting(seen), "new")

    bus.on("before_train", name="first")(first)
    bus.on("before_train", name="last")(lambda: seen.append("last"))
    getattr(bus, fire)("before_train")
    assert seen == ["first", "last"]
    bus.unregister("first")
    getattr(bus, fire)("before_train")
    assert seen == ["first", "last", "new"]


class Holding(Hook):
    """Holds something from the beginning of a run to its end."""

    def __init__(self, seen: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.seen = seen

    def cleanup(self, run: Any) -> None:
        assert self.run is run
        self.seen.append(f"{self.name} lets go in iteration {run.iters_done}")


def test_a_hook_that_leaves_in_the_middle_of_a_run_cleans_up_then_and_only_then(seen: list[str]) -> None:
    bus = HookBus([Holding(seen, name="leaves"), Holding(seen, name="stays")])
    with bus.run(iterations=2) as run:
        for i, _ in enumerate(run.batches([1, 2])):
            if i == 1:
                bus.unregister("leaves")
            bus.emit("after_train_iter")
        assert seen == ["leaves lets go in iteration 1"]
    assert seen == ["leaves lets go in iteration 1", "stays lets go in iteration 2"]
    bus.unregister("stays")
    assert len(seen) == 2


class Serving(Holding):
    """Needs its run in every event that it gets."""

    def after_train_iter(self, run: Any) -> None:
        assert self.run is run
        self.seen.append(f"{self.name} serves")

    after_run = after_train_iter


@pytest.mark.parametrize("point", ["after_train_iter", "after_run"])
def test_a_hook_that_is_removed_during_an_event_gets_it_and_cleans_up_after_it(seen: list[str], point: str) -> None:
    bus: Any = HookBus([Serving(seen, name="leaves")])

    @bus.on(point, priority=Priority.LOWEST)
    def remove() -> None:
        if "leaves" in bus.hooks:
            bus.unregister("leaves")
            seen.append("removed")

    with bus.run(iterations=1) as run:
        for _ in run.batches([1]):
            bus.emit("after_train_iter")
    assert seen[-3:] == ["removed", "leaves serves", "leaves lets go in iteration 1"]


def test_a_hook_that_is_removed_and_registered_again_during_an_event_stays(seen: list[str]) -> None:
    hook = Holding(seen, name="back")
    bus: Any = HookBus([hook])

    @bus.on("after_train_iter")
    def swap() -> None:
        bus.register(bus.unregister(hook))

    with bus.run(iterations=1) as run:
        for _ in run.batches([1]):
            bus.emit("after_train_iter")
        assert hook.run is run


def test_a_hook_that_cannot_clean_up_leaves_all_the_same() -> None:
    class Fails(Hook):
        def cleanup(self) -> None:
            raise OSError("no")

    bus = HookBus([Fails(name="fails")])
    with bus.run():
        with pytest.raises(OSError, match="no"):
            bus.unregister("fails")
        assert bus.hooks == {}


def test_a_hook_that_comes_in_the_middle_of_a_run_knows_the_run(seen: list[str]) -> None:
    bus: Any = HookBus()
    with bus.run() as run:
        hook = Noting(seen)
        bus.register(hook)
        assert hook.run is run


# -- functions -------------------------------------------------------------------------------------------------


def test_a_function_listens_with_options_and_stays_a_function(seen: list[str]) -> None:
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


def test_one_function_may_listen_at_several_points_and_leaves_them_together(seen: list[str]) -> None:
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


def test_the_same_function_twice_at_one_point_is_refused() -> None:
    bus: Any = HookBus()

    def note(run: Any) -> None: ...

    bus.on("before_train")(note)
    with pytest.raises(RegistrationError, match="a hook with this name is already registered"):
        bus.on("before_training")(note)
    bus.on("after_train")(note)
    with pytest.raises(RegistrationError, match="a hook with this name is already registered"):
        bus.on("after_train")(note)
    bus.on("before_train", name="once more")(note)
    assert len(bus.hooks) == 3


def test_functions_of_one_name_need_names(seen: list[str]) -> None:
    bus: Any = HookBus()
    bus.on("before_train")(lambda: seen.append("one"))
    with pytest.raises(RegistrationError, match="Set another `name`"):
        bus.on("before_train")(lambda: seen.append("two"))
    bus.on("before_train", name="two")(lambda: seen.append("two"))
    bus.emit("before_train")
    assert seen == ["one", "two"]


def test_a_bound_method_listens_and_leaves_as_a_function_does(seen: list[str]) -> None:
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


def test_a_function_that_cannot_be_called_is_refused_under_its_own_name() -> None:
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


def test_wishes_by_name_order_functions(seen: list[str]) -> None:
    bus: Any = HookBus()
    bus.on("after_epoch", name="a", priority=0, after="c")(lambda: seen.append("a"))
    bus.on("after_epoch", name="b", priority=50)(lambda: seen.append("b"))
    bus.on("after_epoch", name="c", priority=10)(lambda: seen.append("c"))
    bus.emit("after_epoch")
    assert seen == ["b", "c", "a"]


# -- mistakes and accidents --------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [Noting([]), None, "ema", {"ema": 1}, Noting])
def test_what_is_no_list_of_hooks_is_refused(given: Any) -> None:
    for build in (HookBus, lambda hooks: Trainer(torch.nn.Linear(1, 1), hooks=hooks)):
        with pytest.raises(RegistrationError, match=r"hooks: expected a list of hooks, got .*\. Pass hooks=\[\.\.\.\]"):
            build(given)


@pytest.mark.parametrize("point", [None, 3, "", Lifecycle.after_train_iter])
def test_the_name_of_a_point_is_a_text(point: Any) -> None:
    with pytest.raises(RegistrationError, match=r"bus.on: invalid point name, got"):
        HookBus().on(point)


@pytest.mark.parametrize("point", [None, 3, Lifecycle.after_train_iter])
def test_what_is_no_name_cannot_be_fired(point: Any) -> None:
    bus: Any = HookBus()
    with pytest.raises(PointError, match=r"bus.emit: invalid point name, got"):
        bus.emit(point)


def test_names_are_texts_and_priorities_are_numbers(seen: list[str]) -> None:
    bus: Any = HookBus()
    with pytest.raises(RegistrationError, match="expected the name to be a string, got 3"):
        bus.register(Noting(seen), 3)
    with pytest.raises(RegistrationError, match="invalid priority, got True"):
        bus.register(Noting(seen), priority=True)


@pytest.mark.parametrize("name", ["get", "forget"])
def test_a_word_of_the_bus_is_no_point(name: str) -> None:
    with pytest.raises(PointError, match=f"'{name}' is reserved for an alias, an action or an attribute of the bus"):
        HookBus().declare(name)


def test_a_hook_is_in_one_run_at_a_time(seen: list[str]) -> None:
    hook = Noting(seen)
    first, second = HookBus([hook]), HookBus([hook])
    problem = "hook 'noting' is used by an active run of another bus"
    with first.run(epochs=1) as run:
        with pytest.raises(HookError, match=problem), second.run(epochs=1):
            pass
        with pytest.raises(HookError, match=problem):
            HookBus([hook])
        assert hook.run is run
    with second.run(epochs=1) as run:
        assert hook.run is run


def test_a_hook_that_has_left_is_let_go(seen: list[str]) -> None:
    hook = Noting(seen)
    bus = HookBus([hook])
    bus.emit("before_train")
    bus.unregister(hook)
    gone = weakref.ref(hook)
    del hook
    gc.collect()
    assert gone() is None


def test_a_thread_may_fire_while_members_come_and_go() -> None:
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


def test_asking_for_something_keeps_nothing_of_the_loop_alive(seen: list[str]) -> None:
    bus = HookBus([Noting(seen)])
    with bus.run(validate=dict, epochs=1) as run:
        activation = torch.ones(1)
        gone = weakref.ref(activation)
        run.request_validation()
        del activation
        assert gone() is None
