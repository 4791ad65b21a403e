from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hookbus import Hook
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import GarbageCollectionHook


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the list of generations that were collected."""
    generations: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: generations.append(generation))
    yield generations
    gc.enable()


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
