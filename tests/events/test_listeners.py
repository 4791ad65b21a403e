"""Tests of the conversion of implementations to listeners: priority and schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookbus import Hook, HookBus, HookConfig, Priority, between, every, hookimpl, last
from hookbus.errors import RegistrationError
from hookbus.testing import fake_training


class Settings(HookConfig):
    interval: int | None = 4
    by_epoch: bool = False


class Scheduled(Hook):
    """Hook with listeners at points of every unit, one of which is scheduled."""

    Config = Settings

    def before_train(self, run: Any) -> None: ...
    def before_epoch(self, run: Any) -> None: ...
    def after_optimizer_step(self, run: Any) -> None: ...
    def before_val_iter(self, run: Any) -> None: ...
    def after_forward(self, run: Any) -> None: ...

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Any) -> None: ...


def schedules(hook: object) -> dict[str, str]:
    return {point: rows[0].when for point, rows in HookBus([hook]).explain().points.items()}


def make_hook(when: object) -> Hook:
    def after_train_iter(self: Any, run: Any) -> None: ...

    marked = hookimpl(when=when)(after_train_iter)  # type: ignore[call-overload]
    return type("Made", (Hook,), {"Config": Settings, "after_train_iter": marked})()


# -- priorities -------------------------------------------------------------------------------------------------


class Low(Hook):
    priority = Priority.LOW

    def before_train(self, run: Any) -> None: ...

    @hookimpl(priority=15)
    def after_train(self, run: Any) -> None: ...


class Plain:
    @hookimpl
    def before_train(self, run: Any) -> None: ...


def priorities(hook: object, **options: Any) -> dict[str, tuple[int, str]]:
    bus = HookBus()
    bus.register(hook, **options)
    return {point: (rows[0].priority, rows[0].source) for point, rows in bus.explain().points.items()}


def test_priority_is_that_of_the_listener_or_its_class_or_fifty() -> None:
    assert priorities(Low()) == {"before_train": (70, "class Low"), "after_train": (15, "@hookimpl")}
    assert priorities(Plain()) == {"before_train": (50, "default")}


def test_priority_of_the_user_overrides_that_of_the_author() -> None:
    assert priorities(Low(priority=33)) == {"before_train": (33, "config"), "after_train": (33, "config")}
    assert priorities(Low({"priority": "HIGHEST"}))["after_train"] == (0, "config")
    assert priorities(Low(priority=33), priority=7)["after_train"] == (7, "register(priority=)")
    assert priorities(Plain(), priority=Priority.LOWEST) == {"before_train": (100, "register(priority=)")}


# -- schedules -----------------------------------------------------------------------------------------------


def test_field_names_in_a_schedule_are_resolved_to_settings() -> None:
    assert schedules(Scheduled())["after_train_iter"] == "every(4)"
    assert schedules(Scheduled(interval=9))["after_train_iter"] == "every(9)"


def test_schedule_may_be_a_function_of_the_settings() -> None:
    hook = make_hook(lambda config: every(config.interval, unit="batch" if config.by_epoch else "iter"))
    assert schedules(hook) == {"after_train_iter": "every(4, unit='iter')"}


def test_when_setting_replaces_the_schedule_of_scheduled_listeners_only() -> None:
    whens = schedules(Scheduled(when="every(7) & last"))
    assert whens.pop("after_train_iter") == "(every(7) & last)"
    assert set(whens.values()) == {""}


def test_when_setting_may_contain_field_names() -> None:
    assert schedules(Scheduled(when="between(2, 'interval')"))["after_train_iter"] == "between(2, 4)"


def test_frequency_is_combined_with_the_schedule_at_per_iteration_points() -> None:
    assert schedules(Scheduled(frequency=3)) == {
        "before_train": "",
        "before_epoch": "",
        "after_forward": "every(3)",
        "after_optimizer_step": "",
        "after_train_iter": "(every(4) & every(3))",
        "before_val_iter": "every(3)",
    }


def test_frequency_applies_to_epoch_points_if_the_unit_is_epoch() -> None:
    class ByEpoch(Scheduled):
        unit = "epoch"

    whens = schedules(ByEpoch(frequency=2))
    assert whens["before_epoch"] == "every(2)"
    assert whens["after_train_iter"] == "every(4)"
    assert whens["after_forward"] == ""


def test_frequency_applies_to_optimizer_points_if_the_unit_is_step() -> None:
    class ByStep(Scheduled):
        unit = "step"

    whens = schedules(ByStep(frequency=2))
    assert whens["after_optimizer_step"] == "every(2)"
    assert whens["after_train_iter"] == "every(4)"
    assert whens["after_forward"] == ""


def test_should_trigger_receives_the_index_in_the_unit_of_the_point() -> None:
    indices: list[tuple[str, int]] = []
    called: list[str] = []

    class Triggered(Hook):
        def should_trigger(self, step: int) -> bool:
            indices.append(("", step))
            return step % 3 == 1

        def before_train_iter(self, run: Any) -> None:
            called.append(f"train {run.iter}")

        def after_val_iter(self, batch_idx: int) -> None:
            called.append(f"val {batch_idx}")

        def after_epoch(self, run: Any) -> None:
            called.append("epoch")

    bus = HookBus([Triggered(frequency=2)])
    assert schedules(Triggered(frequency=2))["after_val_iter"] == "every(2) & should_trigger"
    for _ in range(6):
        bus.fire("before_train_iter")
        bus.fire("after_train_iter")
    assert indices == [("", 1), ("", 3), ("", 5)]
    assert called == ["train 1"]
    bus.fire("before_val_epoch")
    for _ in range(4):
        bus.fire("before_val_iter")
        bus.fire("after_val_iter")
    for _ in range(3):
        bus.fire("before_epoch")
        bus.fire("after_epoch")
    assert indices[-3:] == [("", 0), ("", 1), ("", 2)]
    assert called == ["train 1", "val 1", "epoch"]


def test_should_trigger_receives_the_same_index_before_and_after_an_optimizer_step() -> None:
    indices: list[int] = []

    class ByStep(Hook):
        def should_trigger(self, step: int) -> bool:
            indices.append(step)
            return True

        def before_optimizer_step(self) -> None: ...
        def after_optimizer_step(self) -> None: ...

    fake_training([ByStep()], epochs=1, batches=3)
    assert indices == [0, 0, 1, 1, 2, 2]


def test_should_trigger_of_an_instance_is_called() -> None:
    hook = Scheduled()
    hook.should_trigger = lambda step: True  # type: ignore[method-assign]
    assert schedules(hook)["after_forward"] == "should_trigger"


def test_listener_without_frequency_is_affected_by_neither_frequency_nor_should_trigger() -> None:
    class Switch(Hook):
        def should_trigger(self, step: int) -> bool:
            return True

        @hookimpl(frequency=False)
        def before_train_iter(self) -> None: ...

        @hookimpl(when=every(4), frequency=False)
        def after_train_iter(self) -> None: ...

        def after_forward(self) -> None: ...

    assert schedules(Switch(frequency=3)) == {
        "before_train_iter": "",
        "after_forward": "every(3) & should_trigger",
        "after_train_iter": "every(4)",
    }


@pytest.mark.parametrize("unit", ["iter", "epoch"])
def test_frequency_of_one_equals_the_default(unit: str) -> None:
    hook = type("Counted", (Scheduled,), {"unit": unit})
    assert schedules(hook(frequency=1)) == schedules(hook())


def test_should_trigger_is_not_called_unless_overridden() -> None:
    assert schedules(Scheduled())["after_forward"] == ""


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            lambda: make_hook(every("intervall")),
            "after_train_iter: every('intervall'): Settings has no field 'intervall'.",
        ),
        (
            lambda: make_hook(lambda config: None),
            "when=: expected the function to return a schedule, got None. Return every(None)",
        ),
        (lambda: make_hook(lambda config: 5), "when=: expected the function to return a schedule, got 5"),
        (lambda: Scheduled(when="every('interva')"), "Settings has no field 'interva'. Did"),
        (lambda: Scheduled(interval=-3), "every('interval'), interval=-3: expected an integer >= 1, got -3"),
    ],
)
def test_invalid_schedule_raises_at_registration(hook: Callable[[], Hook], message: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        HookBus([hook()])
    assert message in str(caught.value)


def test_plugin_without_settings_requires_a_schedule_of_numbers() -> None:
    bus = HookBus()
    with pytest.raises(RegistrationError, match=r"every\('interval'\): no config contains the field 'interval'"):
        bus.on("after_train_iter", when=every("interval"))(lambda run: None)
    with pytest.raises(RegistrationError, match="when=: functions of the config are supported by hookbus.Hook only"):
        bus.on("after_train_iter", when=lambda config: every(3))(lambda run: None)  # type: ignore[arg-type]
    assert bus.hooks == {}
    bus.on("after_train_iter", when=between(1, 3) | last)(lambda run: None)
    assert len(bus.hooks) == 1


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
