"""From an implementation to a listener: where its number and its schedule come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hookbus import Hook, HookBus, HookConfig, Priority, between, every, hookimpl, last
from hookbus.errors import RegistrationError


class Settings(HookConfig):
    interval: int | None = 4
    by_epoch: bool = False


class Scheduled(Hook):
    """Listens at points of every unit; one of them has a schedule of its own."""

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


def made(when: object) -> Hook:
    def after_train_iter(self: Any, run: Any) -> None: ...

    marked = hookimpl(when=when)(after_train_iter)  # type: ignore[call-overload]
    return type("Made", (Hook,), {"Config": Settings, "after_train_iter": marked})()


# -- numbers -------------------------------------------------------------------------------------------------


class Low(Hook):
    priority = Priority.LOW

    def before_train(self, run: Any) -> None: ...

    @hookimpl(priority=15)
    def after_train(self, run: Any) -> None: ...


class Plain:
    @hookimpl
    def before_train(self, run: Any) -> None: ...


def numbers(hook: object, **options: Any) -> dict[str, tuple[int, str]]:
    bus = HookBus()
    bus.register(hook, **options)
    return {point: (rows[0].priority, rows[0].source) for point, rows in bus.explain().points.items()}


def test_the_number_is_the_listeners_else_its_classs_else_fifty() -> None:
    assert numbers(Low()) == {"before_train": (70, "class Low"), "after_train": (15, "@hookimpl")}
    assert numbers(Plain()) == {"before_train": (50, "default")}


def test_what_the_user_says_wins_over_what_the_author_said() -> None:
    assert numbers(Low(priority=33)) == {"before_train": (33, "config"), "after_train": (33, "config")}
    assert numbers(Low({"priority": "HIGHEST"}))["after_train"] == (0, "config")
    assert numbers(Low(priority=33), priority=7)["after_train"] == (7, "register(priority=)")
    assert numbers(Plain(), priority=Priority.LOWEST) == {"before_train": (100, "register(priority=)")}


# -- schedules -----------------------------------------------------------------------------------------------


def test_names_of_fields_in_a_schedule_mean_the_hooks_settings() -> None:
    assert schedules(Scheduled())["after_train_iter"] == "every(4)"
    assert schedules(Scheduled(interval=9))["after_train_iter"] == "every(9)"


def test_a_schedule_may_be_a_function_of_the_settings() -> None:
    hook = made(lambda config: every(config.interval, unit="batch" if config.by_epoch else "iter"))
    assert schedules(hook) == {"after_train_iter": "every(4, unit='iter')"}


def test_the_files_when_replaces_the_schedule_of_the_scheduled_listeners_only() -> None:
    found = schedules(Scheduled(when="every(7) & last"))
    assert found.pop("after_train_iter") == "(every(7) & last)"
    assert set(found.values()) == {""}


def test_the_files_when_may_name_settings_too() -> None:
    assert schedules(Scheduled(when="between(2, 'interval')"))["after_train_iter"] == "between(2, 4)"


def test_when_in_a_file_is_an_error_where_there_is_nothing_to_replace() -> None:
    class Unscheduled(Hook):
        def after_train_iter(self, run: Any) -> None: ...

    with pytest.raises(RegistrationError, match="`when` replaces the schedules of listeners, but this hook"):
        HookBus([Unscheduled(when="every(3)")])


def test_frequency_gates_the_per_iteration_points_of_a_hook_beside_its_own_schedule() -> None:
    assert schedules(Scheduled(frequency=3)) == {
        "before_train": "",
        "before_epoch": "",
        "after_forward": "every(3)",
        "after_optimizer_step": "",
        "after_train_iter": "(every(4) & every(3))",
        "before_val_iter": "every(3)",
    }


def test_frequency_gates_the_epoch_points_of_a_hook_whose_unit_is_the_epoch() -> None:
    class ByEpoch(Scheduled):
        unit = "epoch"

    found = schedules(ByEpoch(frequency=2))
    assert found["before_epoch"] == "every(2)"
    assert found["after_train_iter"] == "every(4)"
    assert found["after_forward"] == ""


def test_frequency_gates_the_optimizer_points_of_a_hook_whose_unit_is_the_step() -> None:
    class ByStep(Scheduled):
        unit = "step"

    found = schedules(ByStep(frequency=2))
    assert found["after_optimizer_step"] == "every(2)"
    assert found["after_train_iter"] == "every(4)"
    assert found["after_forward"] == ""


def test_should_trigger_is_asked_at_per_iteration_points_with_the_index_from_zero() -> None:
    asked: list[tuple[str, int]] = []
    called: list[str] = []

    class Asked(Hook):
        def should_trigger(self, step: int) -> bool:
            asked.append(("", step))
            return step % 3 == 1

        def before_train_iter(self, run: Any) -> None:
            called.append(f"train {run.iter}")

        def after_val_iter(self, batch_idx: int) -> None:
            called.append(f"val {batch_idx}")

        def after_epoch(self, run: Any) -> None:
            called.append("epoch")

    bus = HookBus([Asked(frequency=2)])
    assert schedules(Asked(frequency=2))["after_val_iter"] == "every(2) & should_trigger"
    for _ in range(6):
        bus.fire("before_train_iter")
        bus.fire("after_train_iter")
    assert asked == [("", 1), ("", 3), ("", 5)]
    assert called == ["train 1"]
    bus.fire("before_val_epoch")
    for _ in range(4):
        bus.fire("before_val_iter")
        bus.fire("after_val_iter")
    bus.fire("after_epoch")
    assert called == ["train 1", "val 1", "epoch"]


def test_a_hook_that_does_not_override_should_trigger_is_never_asked() -> None:
    assert schedules(Scheduled())["after_forward"] == ""


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda: made(every("intervall")), "after_train_iter: every('intervall'): Settings has no field 'intervall'."),
        (lambda: made(lambda config: None), "when=: expected the function to return a schedule, got None. Return every(None)"),
        (lambda: made(lambda config: 5), "when=: expected the function to return a schedule, got 5"),
        (lambda: Scheduled(when="every('interva')"), "Settings has no field 'interva'. Did"),
        (lambda: Scheduled(interval=-3), "every('interval'), interval=-3: expected an integer >= 1, got -3"),
    ],
)
def test_a_schedule_that_does_not_hold_is_refused_at_registration(hook: Callable[[], Hook], message: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        HookBus([hook()])
    assert message in str(caught.value)


def test_a_plugin_without_settings_needs_a_schedule_in_numbers() -> None:
    bus = HookBus()
    with pytest.raises(RegistrationError, match=r"every\('interval'\): no config contains the field 'interval'"):
        bus.on("after_train_iter", when=every("interval"))(lambda run: None)
    with pytest.raises(RegistrationError, match="when=: functions of the config are supported by hookbus.Hook only"):
        bus.on("after_train_iter", when=lambda config: every(3))(lambda run: None)  # type: ignore[arg-type]
    assert bus.hooks == {}
    bus.on("after_train_iter", when=between(1, 3) | last)(lambda run: None)
    assert len(bus.hooks) == 1
