from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import EmptyCacheHook, GarbageCollectionHook


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an item per release of the cache of a simulated accelerator."""
    calls: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda: SimpleNamespace(empty_cache=lambda: calls.append(1)))
    return calls


def train(hook: EmptyCacheHook) -> None:
    """Train two epochs of three batches with a validation of two batches after each, and test one batch."""
    model, data = nn.Linear(1, 1), [torch.zeros(1, 1)] * 3
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        step_fn=lambda model, batch: model(batch).mean(),
        train_loader=data,
        val_loader=data[:2],
        test_loader=data[:1],
        epochs=2,
        work_dir=None,
        hooks=[hook],
        default_hooks=False,
        device="cpu",
    )
    trainer.fit()
    trainer.test()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"before_epoch": True, "after_iter": True}])
def test_hook_passes_the_conformance_checks(settings: dict[str, Any]) -> None:
    check_hook(EmptyCacheHook, **settings)


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        ({}, 5),
        ({"before_epoch": True}, 10),
        ({"after_epoch": False, "before_epoch": True}, 5),
        ({"after_epoch": False, "after_iter": True}, 11),
    ],
)
def test_cache_is_released_in_each_mode_if_configured(
    released: list[int], settings: dict[str, Any], times: int
) -> None:
    train(EmptyCacheHook(settings))

    assert len(released) == times


def test_hook_is_a_no_op_without_an_accelerator(released: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    train(EmptyCacheHook())

    assert released == []


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the list of generations that were collected."""
    generations: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: generations.append(generation))
    yield generations
    gc.enable()


@pytest.mark.slow
def test_garbage_collection_passes_the_conformance_checks() -> None:
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
