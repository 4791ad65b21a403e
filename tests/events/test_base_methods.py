"""Tests of the empty base methods of points."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import Hook, HookBus, hookimpl
from hookbus._events.points import POINT_ALIASES
from hookbus.errors import RegistrationError
from hookbus.lifecycle import POINTS

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    seen.clear()


class Mixin:
    """Class without a base method, which may precede or follow `Hook`."""

    def before_train(self, run: Any) -> None:
        seen.append((type(self).__name__, "before_train"))

    def after_epoch(self, epoch: Any) -> None:
        seen.append((type(self).__name__, epoch))


class Before(Mixin, Hook):
    pass


class After(Hook, Mixin):
    def after_epoch(self, epoch: Any) -> None:
        super().after_epoch(epoch)


@pytest.mark.parametrize("name", [*POINTS, *POINT_ALIASES])
def test_every_point_has_a_base_method_that_accepts_any_arguments(name: str) -> None:
    assert getattr(Hook(), name)("run", 1, data_batch=None) is None


def test_base_methods_are_no_listeners() -> None:
    bus = HookBus([Hook()])
    assert {name for name in POINTS if bus.table.listeners(name, bus.current)} == set()
    assert bus.calls.get("after_forward") is None
    assert Hook().get_triggered_stages() == []


def test_listener_calls_its_base_method_with_the_arguments_of_other_trainers() -> None:
    class Ported(Hook):
        def before_run(self, runner: Any) -> None:
            super().before_run(runner)
            seen.append("before_run")

        def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
            super().after_train_iter(runner, batch_idx, data_batch, outputs=outputs)
            seen.append(batch_idx)

    bus = HookBus([hook := Ported()])
    bus.fire("before_run", mode="train")
    bus.fire("after_train_iter", batch_idx=3)
    assert seen == ["before_run", 3]
    assert hook.get_triggered_stages() == ["before_run", "after_train_iter"]


@pytest.mark.parametrize("cls", [Before, After])
def test_order_of_the_base_classes_does_not_matter(cls: type[Hook]) -> None:
    bus = HookBus([hook := cls()])
    bus.fire("before_train")
    bus.fire("after_epoch", epoch=2)
    assert seen == [(cls.__name__, "before_train"), (cls.__name__, 2)]
    assert hook.get_triggered_stages() == ["before_train", "after_epoch"]


def test_hooks_with_two_hook_classes_call_both() -> None:
    class First(Hook):
        def before_train(self, run: Any) -> None:
            seen.append("first")
            super().before_train(run)

    class Second(Hook):
        def before_train(self, run: Any) -> None:
            seen.append("second")
            super().before_train(run)

    class Both(First, Second):
        pass

    HookBus([Both()]).fire("before_train")
    assert seen == ["first", "second"]


def test_marked_methods_of_a_later_class_keep_their_options() -> None:
    class Marked:
        @hookimpl(priority=7)
        def before_train(self, run: Any) -> None: ...

    class Listens(Hook, Marked):
        pass

    assert "7  listens  (@hookimpl)" in str(HookBus([Listens()]).explain())


def test_listener_of_a_later_class_is_validated() -> None:
    class Wrong:
        def before_train(self, nothing: Any) -> None: ...

    class Listens(Hook, Wrong):
        pass

    with pytest.raises(RegistrationError, match="unknown argument 'nothing'"):
        HookBus([Listens()])
