"""Tests of the check that common keys affect a listener or are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pluggy import HookimplMarker
from pydantic import field_validator

from hookbus import Hook, HookConfig, every, hookimpl
from hookbus.testing.common_keys import check_common_keys


class Scheduled(Hook):
    """The values of the check equal the defaults: `frequency: 7` is implied by the schedule, `warn` by `observer`."""

    priority = 3
    observer = True

    @hookimpl(when=every(7))
    def after_train_iter(self) -> None: ...


class AroundTheStep(Hook):
    @hookimpl(tryfirst=True)
    def train_step(self) -> None: ...


class Optional(Hook):
    @HookimplMarker("hookbus")(optionalhook=True)
    def on_another_point(self) -> None: ...


class Dropping(Hook):
    def __init__(self, config: dict[str, Any], key: str) -> None:
        super().__init__({name: value for name, value in config.items() if name != key})

    @hookimpl(when=every(2))
    def after_train_iter(self) -> None: ...


def dropping(key: str) -> type[Hook]:
    return type("DroppingHook", (Dropping,), {"__init__": lambda self, config: Dropping.__init__(self, config, key)})


def rejecting(message: str, accepted: tuple[int | None, ...]) -> type[Hook]:
    class Config(HookConfig):
        @field_validator("frequency")
        @classmethod
        def _reject(cls, value: int | None) -> int | None:
            if value not in accepted:
                raise ValueError(message.format(value=value))
            return value

    return type("RejectingHook", (Scheduled,), {"Config": Config})


@pytest.mark.parametrize(
    "cls", [Hook, Scheduled, AroundTheStep, Optional, rejecting("not supported, got {value}.", (None, 1))]
)
def test_keys_that_affect_a_listener_or_are_refused_pass(cls: type[Hook]) -> None:
    check_common_keys(cls, {})


@pytest.mark.parametrize(
    ("key", "value"), [("frequency", "7"), ("when", r"every\(7\)"), ("priority", "3"), ("on_error", "warn")]
)
def test_key_that_is_dropped_fails(key: str, value: str) -> None:
    with pytest.raises(AssertionError, match=f"DroppingHook accepts `{key}: {value}`, but no listener changes. Pass"):
        check_common_keys(dropping(key), {})


def test_refusal_without_the_value_fails() -> None:
    with pytest.raises(AssertionError, match="RejectingHook refuses `frequency: 7` .* does not contain '7': .* no. Re"):
        check_common_keys(rejecting("no. Remove it.", (None, 1)), {})


def test_refusal_of_the_default_written_out_fails() -> None:
    with pytest.raises(AssertionError, match="RejectingHook refuses `frequency: 1`, which selects every event: "):
        check_common_keys(rejecting("not supported, got {value}.", (None,)), {})
