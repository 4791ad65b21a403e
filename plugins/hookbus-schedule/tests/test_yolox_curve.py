"""Values of the schedule for base 0.01, floor 0.0005, 100 iterations, a warm-up of 10, and 20 constant iterations."""

from __future__ import annotations

import pytest

from hookbus_schedule.yolox_curve import yolox_lr

CASE = {"base": 0.01, "floor": 0.0005, "total": 100, "warmup": 10, "last": 20}


@pytest.mark.parametrize(
    ("number", "rate"),
    [
        (1, 0.0001),  # 0.01 * (1/10)^2
        (5, 0.0025),  # 0.01 * (5/10)^2
        (10, 0.01),
        (27.5, 0.0086087572),  # 0.0005 + 0.00475 * (1 + sqrt(2)/2)
        (45, 0.00525),  # half of the decay
        (80, 0.0005),
        (81, 0.0005),
        (100, 0.0005),
    ],
)
def test_rate_increases_decays_and_stays_constant(number: float, rate: float) -> None:
    assert yolox_lr(number, **CASE) == pytest.approx(rate, rel=1e-8)


def test_rate_is_above_the_floor_before_the_final_phase() -> None:
    assert yolox_lr(79, **CASE) > 0.0005


def test_rate_without_warm_up_starts_near_the_base() -> None:
    assert yolox_lr(1, base=0.01, floor=0.0005, total=100, last=20) >= 0.0099


def test_rate_without_final_phase_reaches_the_floor_at_the_end() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4) for number in range(1, 5)]

    assert rates == pytest.approx([0.8535533906, 0.5, 0.1464466094, 0.0], abs=1e-9)


def test_offset_evaluates_the_rate_at_the_start_of_an_epoch() -> None:
    rates = [yolox_lr(number, base=1.0, floor=0.0, total=4, last=2, offset=1) for number in range(1, 5)]

    assert rates == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_warm_up_can_cover_the_whole_training() -> None:
    assert [yolox_lr(n, base=1.0, floor=0.25, total=2, warmup=2) for n in (1, 2)] == [0.25, 1.0]
