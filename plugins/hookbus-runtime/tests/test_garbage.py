from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hookbus import Hook
from hookbus.testing import check_hook, fake_training
from hookbus_runtime import GarbageCollectionHook


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The generation of each collection that was asked for."""
    found: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation=2: found.append(generation))
    yield found
    gc.enable()


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(GarbageCollectionHook)


def test_garbage_is_collected_when_it_is_due_and_only_then(collected: list[int]) -> None:
    states: list[bool] = []

    class Looks(Hook):
        def before_train_iter(self) -> None:
            states.append(gc.isenabled())

    fake_training([GarbageCollectionHook(interval=2, generation=0), Looks()])

    assert collected == [2, 0, 0, 0]
    assert states == [False] * 6
    assert gc.isenabled()


def test_it_is_left_off_where_it_was_off(collected: list[int]) -> None:
    gc.disable()
    fake_training([GarbageCollectionHook()])

    assert not gc.isenabled()


def test_a_run_that_fails_leaves_it_on(collected: list[int]) -> None:
    class Fails(Hook):
        def after_train_iter(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fake_training([GarbageCollectionHook(), Fails()])
    assert gc.isenabled()
