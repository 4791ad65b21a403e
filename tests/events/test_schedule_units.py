"""Tests of the numbers of schedules and of config fields used as numbers."""

from __future__ import annotations

import pytest

from hookbus import HookConfig, between, every, last, once
from hookbus._events.schedules import Schedule
from hookbus.errors import ConfigError

# -- invalid numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every(0), r"every\(0\): expected an integer >= 1, got 0"),
        (lambda: every(-2), r"every\(-2\): expected an integer >= 1, got -2"),
        (lambda: every(True), "expected an integer >= 1, got True"),
        (lambda: every(2.0), r"every\(2.0\): expected an integer >= 1, got 2.0"),
        (lambda: every(2, start=0), r"every\(2, start=0\): expected an integer >= 1, got 0"),
        (lambda: between(-1, 3), "expected an integer >= 0, got -1"),
        (lambda: between(1, None), "expected an integer >= 0, got None"),
        (lambda: between(5, 4), r"between\(5, 4\): never due, because the first number is greater"),
        (lambda: once(0), r"once\(0\): expected an integer >= 1, got 0"),
        (lambda: once(3, None), "expected an integer >= 1, got None"),
    ],
)
def test_invalid_number_raises(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


# -- fields of a config --------------------------------------------------------------------------------


class Settings(HookConfig):
    interval: int | None = 4
    begin: int = 2
    end: int = 9
    text: str = "hello"
    none: int | None = None
    zero: int = 0


@pytest.mark.parametrize(
    ("schedule", "resolved"),
    [
        (every("interval"), every(4)),
        (every("interval", start="begin", unit="step"), every(4, start=2, unit="step")),
        (every("none"), every(None)),
        (every(3, start="none"), every(3)),
        (between("begin", "end"), between(2, 9)),
        (between("zero", "end"), between(0, 9)),
        (once("end", 3), once(9, 3)),
        (last, last),
        (every("interval") & ~between("begin", 5) | last, every(4) & ~between(2, 5) | last),
    ],
    ids=repr,
)
def test_field_names_are_replaced_by_their_values(schedule: Schedule, resolved: Schedule) -> None:
    assert schedule.resolve(Settings()) == resolved


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (every("intervall"), "every('intervall'): Settings has no field 'intervall'. Did"),
        (every("zero"), "every('zero'), zero=0: expected an integer >= 1, got 0"),
        (every(2, start="zero"), "zero=0"),
        (every("text"), "every('text'): invalid field 'text', expected a number, got 'hello'"),
        (once("none"), "once('none'), none=None"),
        (between("begin", "none"), "between('begin', 'none'), none=None"),
        (between("end", "begin"), "between(9, 2): never due"),
    ],
    ids=repr,
)
def test_invalid_field_raises_with_its_name(schedule: Schedule, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule.resolve(Settings())
    assert message in str(caught.value)


def test_field_name_without_a_config_raises() -> None:
    assert (every(3) & last).resolve(None) == every(3) & last
    with pytest.raises(ConfigError, match=r"every\('interval'\): no config contains the field 'interval'"):
        (last & every("interval")).resolve(None)
