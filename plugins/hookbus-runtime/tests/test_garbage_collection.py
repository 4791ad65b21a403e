from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hookbus import Hook, HookBus, Run
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import GarbageCollectionHook


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the list of generations that were collected."""
    generations: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: generations.append(generation))
    yield generations
    gc.enable()


@pytest.mark.slow
def test_hook_passes_the_conformance_checks() -> None:
    check_hook(GarbageCollectionHook)


def test_garbage_is_collected_only_at_the_interval(collected: list[int]) -> None:
    states: list[bool] = []

    class StateRecorder(Hook):
        def before_train_iter(self) -> None:
            states.append(gc.isenabled())

    fake_training([GarbageCollectionHook(interval=2, generation=0), StateRecorder()])

    assert collected == [2, 0, 0, 0]
    assert states == [False] * 6
    assert gc.isenabled()


def test_collection_that_was_disabled_stays_disabled(collected: list[int]) -> None:
    gc.disable()
    fake_training([GarbageCollectionHook()])

    assert not gc.isenabled()


def test_failed_run_enables_collection_again(collected: list[int]) -> None:
    class FailingHook(Hook):
        def after_train_iter(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fake_training([GarbageCollectionHook(), FailingHook()])
    assert gc.isenabled()


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_two_hooks_collect_at_both_intervals_and_disable_collection_until_the_end(
    names: str, collected: list[int]
) -> None:
    states: list[bool] = []

    class StateRecorder(Hook):
        def before_train_iter(self) -> None:
            states.append(gc.isenabled())

    hooks = {
        "a": GarbageCollectionHook(name="a", interval=2, generation=0),
        "b": GarbageCollectionHook(name="b", interval=3, generation=1),
    }
    fake_training([*(hooks[name] for name in names), StateRecorder()])

    assert sorted(collected) == [0, 0, 0, 1, 1, 2, 2]
    assert states == [False] * 6
    assert gc.isenabled()


def test_hook_that_is_removed_does_not_enable_collection_for_another_one(collected: list[int]) -> None:
    hooks = [GarbageCollectionHook(name="a"), GarbageCollectionHook(name="b")]
    bus, states = HookBus(hooks), []

    @bus.on("after_train_iter")
    def remove(run: Run) -> None:
        states.append(gc.isenabled())
        if run.iters_done == 2:
            bus.unregister(hooks[0])

    fake_training(bus=bus)
    assert states == [False] * 6
    assert gc.isenabled()
