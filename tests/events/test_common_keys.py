"""Tests of the common keys: each affects a listener of the hook, or registration raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookbus import Hook, HookBus, HookConfig, every, hookimpl
from hookbus.errors import RegistrationError


class Empty(Hook):
    """Hook without listeners."""


class Uncounted(Hook):
    def before_train(self) -> None: ...


class AtEpochs(Hook):
    def after_epoch(self) -> None: ...
    def after_val_iter(self) -> None: ...


class OnlyEpochs(Hook):
    def before_run(self) -> None: ...
    def after_epoch(self) -> None: ...


class Switch(Hook):
    @hookimpl(frequency=False)
    def before_train_iter(self) -> None: ...


class Disabled(Hook):
    class Config(HookConfig):
        interval: int | None = None

    @hookimpl(when=every("interval"))
    def after_train_iter(self) -> None: ...


class InAction(Hook):
    @hookimpl(tryfirst=True)
    def train_step(self, run: Any) -> None: ...


def triggered(cls: type[Hook]) -> type[Hook]:
    return type(cls.__name__, (cls,), {"should_trigger": lambda self, step: step > 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Empty(priority=3), "`priority` orders listeners, but this hook has none, got 3. Remove `priority`."),
        (
            lambda: Empty(on_error="warn"),
            "`on_error` applies to listeners, but this hook has none, got 'warn'. Remove `on_error`.",
        ),
        (
            lambda: InAction(on_error="disable"),
            "`on_error` applies to listeners, but this hook has none, got 'disable'",
        ),
        (
            lambda: AtEpochs(when="every(3)"),
            "`when` replaces the schedules of listeners, but this hook has no scheduled listener, got every(3). Set "
            "`frequency` instead.",
        ),
        (lambda: Uncounted(when="every(3)"), "has no scheduled listener, got every(3). Remove `when`."),
        (
            lambda: Switch(frequency=7),
            "`frequency` has no effect, got 7: every event is required by before_train_iter. Remove `frequency`.",
        ),
        (
            lambda: Uncounted(frequency=2),
            "`frequency` has no effect, got 2: no listener counts iterations, steps or epochs. Remove `frequency`.",
        ),
        (
            lambda: OnlyEpochs(frequency=2),
            "no listener counts in the unit 'iter' of the hook. Set its class attribute `unit` to 'epoch', or remove",
        ),
        (lambda: InAction(frequency=2), "`frequency` has no effect, got 2: no listener counts"),
        (lambda: Disabled(frequency=2), "got 2: other settings disable after_train_iter. Remove `frequency`."),
        (triggered(Uncounted), "should_trigger has no effect: no listener counts iterations, steps or epochs."),
        (triggered(Switch), "should_trigger has no effect: every event is required by before_train_iter."),
        (triggered(Empty), "should_trigger has no effect"),
    ],
)
def test_key_that_affects_no_listener_raises_at_registration(make: Callable[[], Hook], message: str) -> None:
    bus = HookBus()
    with pytest.raises(RegistrationError) as caught:
        bus.register(make(), "mine")
    assert message in str(caught.value)
    assert bus.hooks == {}


@pytest.mark.parametrize("cls", [Empty, Uncounted, OnlyEpochs, Switch, Disabled, InAction])
def test_default_written_out_is_accepted(cls: type[Hook]) -> None:
    HookBus([cls(frequency=1, when=None, priority=None, on_error="raise")])


def test_key_that_affects_one_of_the_listeners_is_accepted() -> None:
    rows = HookBus([AtEpochs(frequency=2)]).explain().points
    assert {point: row.when for point, (row,) in rows.items()} == {"after_epoch": "", "after_val_iter": "every(2)"}
    (row,) = HookBus([Disabled(when="every(3)", frequency=2)]).explain().points["after_train_iter"]
    assert row.when == "(every(3) & every(2))"
    HookBus([InAction(priority=3), OnlyEpochs(on_error="warn"), triggered(AtEpochs)()])


@pytest.mark.parametrize("register", [lambda bus: bus.register, lambda bus: bus.pm.register])
def test_priority_at_registration_without_a_listener_raises(
    register: Callable[[HookBus], Callable[..., Any]],
) -> None:
    bus = HookBus()
    with pytest.raises(RegistrationError, match="'mine'.* `priority` orders listeners, but this hook has none, got 7"):
        register(bus)(Empty(), "mine", priority=7)
    assert bus.hooks == {}


def test_priority_at_registration_reaches_a_point_that_is_declared_later() -> None:
    class Later(Hook):
        def on_step_of_mine(self) -> None: ...

    bus = HookBus()
    bus.pm.register(Later(), "mine", priority=7)
    bus.declare("on_step_of_mine", ())
    assert bus.explain().points["on_step_of_mine"][0].priority == 7
