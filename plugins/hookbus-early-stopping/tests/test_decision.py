"""When it is time to stop."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus_early_stopping.decision import Decision, Mode

NAN, INF = math.nan, math.inf


def stop_of(decision: Decision, scores: Sequence[float]) -> int | None:
    """The number of the first score after which it is time to stop; None for never."""
    for number, score in enumerate(scores, 1):
        decision.update(score, number)
        if decision.reason is not None:
            return number
    return None


class TestImprovement:
    @pytest.mark.parametrize(
        ("mode", "min_delta", "score", "improves"),
        [
            ("max", 0.0, 1.0, False),
            ("max", 0.0, math.nextafter(1.0, 2), True),
            ("max", 0.5, 1.5, False),
            ("max", 0.5, math.nextafter(1.5, 2), True),
            ("min", 0.0, 1.0, False),
            ("min", 0.0, math.nextafter(1.0, 0), True),
            ("min", 0.5, 0.5, False),
            ("min", 0.5, math.nextafter(0.5, 0), True),
        ],
    )
    def test_is_strictly_more_than_min_delta(self, mode: Mode, min_delta: float, score: float, improves: bool) -> None:
        decision = Decision(mode, min_delta=min_delta)
        assert decision.update(1.0, 1)
        assert decision.update(score, 2) is improves
        assert decision.best_epoch == (2 if improves else 1)

    def test_is_measured_against_the_last_accepted_best(self) -> None:
        decision = Decision("max", min_delta=0.1, patience=2)
        assert stop_of(decision, [3.00, 3.05, 3.12, 3.14, 3.20, 3.30]) == 5
        assert decision.best_score == 3.12

    def test_of_small_steady_gains_counts_once_they_add_up(self) -> None:
        decision = Decision("max", min_delta=0.25, patience=3)
        assert stop_of(decision, [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75]) is None
        assert decision.best_score == 0.75
        assert decision.best_epoch == 7

    def test_is_over_the_baseline_at_first(self) -> None:
        decision = Decision("max", baseline=0.5, patience=2)
        assert not decision.update(0.5, 1)
        assert (decision.best_score, decision.best_epoch, decision.wait_count) == (0.5, None, 1)
        assert decision.update(0.75, 2)
        assert (decision.best_score, decision.best_epoch, decision.wait_count) == (0.75, 2, 0)

    @pytest.mark.parametrize("score", [NAN, INF, -INF])
    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_is_never_a_score_that_is_not_finite(self, mode: Mode, score: float) -> None:
        decision = Decision(mode, check_finite=False)
        assert not decision.update(score, 1)
        assert decision.best_score is None


class TestPatience:
    @pytest.mark.parametrize(("patience", "stop"), [(0, 2), (1, 2), (2, 3), (3, 4)])
    def test_counts_scores_without_improvement_and_zero_acts_as_one(self, patience: int, stop: int) -> None:
        assert stop_of(Decision("min", patience=patience), [1.0, 1.0, 1.0, 1.0, 1.0]) == stop

    def test_begins_again_at_an_improvement(self) -> None:
        decision = Decision("min", patience=2)
        assert stop_of(decision, [5.0, 6.0, 4.0, 6.0, 3.0, 6.0, 6.0, 1.0]) == 7
        assert (decision.best_score, decision.best_epoch, decision.wait_count) == (3.0, 5, 2)

    def test_a_wish_is_forgotten_when_the_score_recovers(self) -> None:
        decision = Decision("min", patience=2)
        for epoch, score in enumerate([5.0, 4.0, 4.0, 4.0], 1):
            decision.update(score, epoch)
        assert decision.reason is not None
        decision.update(3.0, 5)
        assert decision.reason is None

    @pytest.mark.parametrize(
        ("scores", "stop", "best_epoch"),
        [([1.0, NAN, NAN, NAN], 4, 1), ([1.0, NAN, 0.9, NAN, NAN, NAN], 6, 3)],
    )
    def test_is_used_up_by_nan_where_that_is_no_reason_of_its_own(
        self, scores: list[float], stop: int, best_epoch: int
    ) -> None:
        decision = Decision("min", patience=3, check_finite=False)
        assert stop_of(decision, scores) == stop
        assert decision.best_epoch == best_epoch


class TestThresholds:
    @pytest.mark.parametrize(
        ("mode", "score", "stops"),
        [
            ("min", math.nextafter(0.25, 1), False),
            ("min", 0.25, True),
            ("min", 0.1, True),
            ("max", math.nextafter(0.25, 0), False),
            ("max", 0.25, True),
            ("max", 0.4, True),
        ],
    )
    def test_good_enough_includes_the_threshold(self, mode: Mode, score: float, stops: bool) -> None:
        assert (stop_of(Decision(mode, stopping_threshold=0.25), [score]) == 1) is stops

    @pytest.mark.parametrize(
        ("mode", "score", "stops"),
        [
            ("min", math.nextafter(9.0, 0), False),
            ("min", 9.0, True),
            ("min", 99.0, True),
            ("max", math.nextafter(9.0, 10), False),
            ("max", 9.0, True),
            ("max", 0.0, True),
        ],
    )
    def test_diverged_includes_the_threshold(self, mode: Mode, score: float, stops: bool) -> None:
        assert (stop_of(Decision(mode, divergence_threshold=9.0), [score]) == 1) is stops

    def test_infinity_is_never_good_enough_but_does_diverge(self) -> None:
        assert stop_of(Decision("max", check_finite=False, stopping_threshold=1.0), [INF]) is None
        assert stop_of(Decision("min", check_finite=False, divergence_threshold=1.0), [INF]) == 1
        assert stop_of(Decision("max", check_finite=False, divergence_threshold=1.0), [-INF]) == 1

    def test_zero_is_a_threshold_like_any_other(self) -> None:
        assert stop_of(Decision("min", stopping_threshold=0.0), [0.0]) == 1
        assert stop_of(Decision("max", divergence_threshold=0.0), [0.0]) == 1


@pytest.mark.parametrize("score", [NAN, INF, -INF])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_not_finite_ends_it_at_once(mode: Mode, score: float) -> None:
    assert stop_of(Decision(mode, patience=99), [1.0, score]) == 2


@pytest.mark.parametrize(
    ("settings", "scores", "reason"),
    [
        ({}, [1.0], None),
        ({}, [NAN], "is nan, which is not finite"),
        ({"stopping_threshold": 0.5}, [0.25], "is 0.25: it has reached the stopping threshold 0.5"),
        ({"divergence_threshold": 5.0}, [7.0], "is 7: it has reached the divergence threshold 5"),
        ({"patience": 1}, [0.5, 0.5], "has not improved on 0.5 (epoch 1) in 1 validation"),
        ({"patience": 2}, [0.5, 0.5, 0.5], "has not improved on 0.5 (epoch 1) in 2 validations"),
        ({"patience": 1, "baseline": 0.25}, [0.5], "has not improved on 0.25 (the baseline) in 1 validation"),
        ({"patience": 1, "check_finite": False}, [NAN], "has not been finite in 1 validation"),
    ],
)
def test_the_reason_says_what_happened(settings: dict[str, Any], scores: list[float], reason: str | None) -> None:
    decision = Decision("min", **settings)
    stop_of(decision, scores)
    assert decision.reason == reason


SCORES = st.lists(st.sampled_from([NAN, INF, -INF, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]), max_size=12)


@given(SCORES, st.integers(0, 12), st.sampled_from(["min", "max"]), st.integers(0, 4), st.booleans())
def test_a_decision_that_was_kept_and_loaded_goes_on_as_if_nothing_had_happened(
    scores: list[float], cut: int, mode: Mode, patience: int, check_finite: bool
) -> None:
    straight, first, second = (
        Decision(mode, patience=patience, min_delta=0.5, check_finite=check_finite) for _ in range(3)
    )
    for epoch, score in enumerate(scores, 1):
        straight.update(score, epoch)
        if epoch <= cut:
            first.update(score, epoch)
    second.load_state_dict(first.state_dict())
    assert second.reason == first.reason
    for epoch, score in enumerate(scores[cut:], cut + 1):
        second.update(score, epoch)
    assert second.reason == straight.reason
    assert (second.best_score, second.best_epoch) == (straight.best_score, straight.best_epoch)
    assert second.wait_count == straight.wait_count


@given(SCORES, st.integers(0, 4))
def test_max_is_min_with_the_signs_turned_around(scores: list[float], patience: int) -> None:
    less = Decision("min", patience=patience, min_delta=0.5, stopping_threshold=0.0, divergence_threshold=2.5)
    more = Decision("max", patience=patience, min_delta=0.5, stopping_threshold=0.0, divergence_threshold=-2.5)
    assert stop_of(less, scores) == stop_of(more, [-score for score in scores])
    assert less.best_epoch == more.best_epoch


@pytest.mark.parametrize(("scores", "best"), [([], 0.2), ([0.9], 0.2), ([0.4], 0.4)])
def test_a_baseline_that_is_changed_counts_until_something_has_improved(scores: list[float], best: float) -> None:
    first, second = Decision("min", baseline=0.5), Decision("min", baseline=0.2)
    for epoch, score in enumerate(scores, 1):
        first.update(score, epoch)
    second.load_state_dict(first.state_dict())
    assert second.best_score == best
