"""Values worked out by hand: base 0.01, floor 0.0005, 100 iterations, a warm-up of 10, the last 20 constant."""

from __future__ import annotations

import pytest

from hookbus_schedule.curve import yolox_lr

CASE = {"base": 0.01, "floor": 0.0005, "total": 100, "warmup": 10, "last": 20}


@pytest.mark.parametrize(
    ("number", "rate"),
    [
        (1, 0.0001),  # 0.01 * (1/10)^2
        (5, 0.0025),  # 0.01 * (5/10)^2
        (10, 0.01),
        (27.5, 0.0086087572),  # 0.0005 + 0.00475 * (1 + sqrt(2)/2)
        (45, 0.00525),  # half way down
        (80, 0.0005),
        (81, 0.0005),
        (100, 0.0005),
    ],
)
def test_it_rises_falls_and_stays(number: float, rate: float) -> None:
    assert yolox_lr(number, **CASE) == pytest.approx(rate, rel=1e-8)


def test_it_is_not_at_the_floor_before_the_last_part() -> None:
    assert yolox_lr(79, **CASE) > 0.0005


def test_without_a_warm_up_it_starts_near_the_top() -> None:
    assert yolox_lr(1, base=0.01, floor=0.0005, total=100, last=20) >= 0.0099


def test_without_a_last_part_it_reaches_the_floor_at_the_end() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4) for number in range(1, 5)]

    assert rates == pytest.approx([0.8535533906, 0.5, 0.1464466094, 0.0], abs=1e-9)


def test_an_offset_lets_epochs_have_the_rate_of_their_beginning() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4, last=2, offset=1) for number in range(1, 5)]

    assert rates == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_all_of_it_may_be_warm_up() -> None:
    assert [yolox_lr(n, base=1.0, floor=0.25, total=2, warmup=2) for n in (1, 2)] == [0.25, 1.0]
