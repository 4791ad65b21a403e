"""Stopping rule: improvement, patience, thresholds, and state."""

import math
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hookbus_early_stopping.stopping_rule import Mode, StoppingRule

NAN, INF = math.nan, math.inf


def get_stop(rule: StoppingRule, scores: Sequence[float]) -> int | None:
    """Return the number of the first score, from 1, at which the rule is to stop; None for never."""
    for number, score in enumerate(scores, 1):
        rule.update(score, number)
        if rule.reason is not None:
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
    def test_improvement_exceeds_min_delta(self, mode: Mode, min_delta: float, score: float, improves: bool) -> None:
        rule = StoppingRule(mode, min_delta=min_delta)
        assert rule.update(1.0, 1)
        assert rule.update(score, 2) is improves
        assert rule.best_epoch == (2 if improves else 1)

    def test_improvement_is_measured_from_the_last_accepted_score(self) -> None:
        rule = StoppingRule("max", min_delta=0.1, patience=2)
        assert get_stop(rule, [3.00, 3.05, 3.12, 3.14, 3.20, 3.30]) == 5
        assert rule.best_score == 3.12

    def test_small_gains_add_up_to_an_improvement(self) -> None:
        rule = StoppingRule("max", min_delta=0.25, patience=3)
        assert get_stop(rule, [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75]) is None
        assert rule.best_score == 0.75
        assert rule.best_epoch == 7

    @pytest.mark.parametrize(
        ("mode", "best", "threshold"),
        [("max", 2.0, 2.5), ("min", 2.0, 1.5), ("max", -2.0, -1.5), ("min", -2.0, -2.5), ("max", 0.0, 0.0)],
    )
    def test_relative_improvement_exceeds_a_fraction_of_the_absolute_best_score(
        self, mode: Mode, best: float, threshold: float
    ) -> None:
        better = math.nextafter(threshold, INF if mode == "max" else -INF)
        for score, improves in ((threshold, False), (better, True)):
            rule = StoppingRule(mode, min_delta=0.25, min_delta_mode="rel")
            rule.update(best, 1)
            assert rule.update(score, 2) is improves

    @pytest.mark.parametrize(
        ("settings", "scores", "stop", "best"),
        [
            ({}, [4, 4.8, 5, 5.5, 6], None, (6, 5)),
            ({"min_delta_mode": "rel"}, [4, 4.8, 5, 5.5, 6], 3, (4, 1)),  # an improvement on 4 is above 5
            ({"min_delta_mode": "rel"}, [4, 5.5, 6, 7, 7, 7], 6, (7, 4)),  # 6.875: 6 is none, 7 is one
            ({"min_delta_mode": "rel", "baseline": -4}, [-3, -2.5, -2.25, 0, 0.5], None, (0.5, 5)),  # -3 is none
            ({"min_delta_mode": "rel", "cumulative_delta": False}, [4, 4.8, 5, 6.5, 7, 7.5], 3, (5, 3)),
            ({"cumulative_delta": False}, [0, 0.125, 0.25, 0.375, 0.5], 3, (0.25, 3)),
            ({"cumulative_delta": False}, [0, 0.25, 0.75, 0.5, 0.75], 5, (0.75, 3)),
            ({"cumulative_delta": False}, [0, 0.25, 0.75, 0.875, 1.25, 1.5, 1.5], 7, (1.5, 6)),
        ],
    )
    def test_rule_stops_and_has_the_best_score_worked_out_by_hand(
        self, settings: dict[str, Any], scores: list[float], stop: int | None, best: tuple[float, int]
    ) -> None:
        rule = StoppingRule("max", min_delta=0.25, patience=2, **settings)
        assert get_stop(rule, scores) == stop
        assert (rule.best_score, rule.best_epoch) == best

    def test_first_improvement_exceeds_the_baseline(self) -> None:
        rule = StoppingRule("max", baseline=0.5, patience=2)
        assert not rule.update(0.5, 1)
        assert (rule.best_score, rule.best_epoch, rule.wait_count) == (0.5, None, 1)
        assert rule.update(0.75, 2)
        assert (rule.best_score, rule.best_epoch, rule.wait_count) == (0.75, 2, 0)

    @pytest.mark.parametrize("score", [NAN, INF, -INF])
    @pytest.mark.parametrize("mode", ["min", "max"])
    def test_nonfinite_score_is_no_improvement(self, mode: Mode, score: float) -> None:
        rule = StoppingRule(mode, check_finite=False)
        assert not rule.update(score, 1)
        assert rule.best_score is None


class TestPatience:
    @pytest.mark.parametrize(("patience", "stop"), [(0, 2), (1, 2), (2, 3), (3, 4)])
    def test_patience_counts_scores_without_improvement_and_zero_acts_as_one(self, patience: int, stop: int) -> None:
        assert get_stop(StoppingRule("min", patience=patience), [1.0, 1.0, 1.0, 1.0, 1.0]) == stop

    def test_improvement_resets_the_wait_count(self) -> None:
        rule = StoppingRule("min", patience=2)
        assert get_stop(rule, [5.0, 6.0, 4.0, 6.0, 3.0, 6.0, 6.0, 1.0]) == 7
        assert (rule.best_score, rule.best_epoch, rule.wait_count) == (3.0, 5, 2)

    def test_improvement_clears_the_reason_to_stop(self) -> None:
        rule = StoppingRule("min", patience=2)
        for epoch, score in enumerate([5.0, 4.0, 4.0, 4.0], 1):
            rule.update(score, epoch)
        assert rule.reason is not None
        rule.update(3.0, 5)
        assert rule.reason is None

    @pytest.mark.parametrize(
        ("scores", "stop", "best_epoch"),
        [([1.0, NAN, NAN, NAN], 4, 1), ([1.0, NAN, 0.9, NAN, NAN, NAN], 6, 3)],
    )
    def test_nan_counts_as_no_improvement_if_check_finite_is_false(
        self, scores: list[float], stop: int, best_epoch: int
    ) -> None:
        rule = StoppingRule("min", patience=3, check_finite=False)
        assert get_stop(rule, scores) == stop
        assert rule.best_epoch == best_epoch


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
    def test_stopping_threshold_is_inclusive(self, mode: Mode, score: float, stops: bool) -> None:
        assert (get_stop(StoppingRule(mode, stopping_threshold=0.25), [score]) == 1) is stops

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
    def test_divergence_threshold_is_inclusive(self, mode: Mode, score: float, stops: bool) -> None:
        assert (get_stop(StoppingRule(mode, divergence_threshold=9.0), [score]) == 1) is stops

    def test_infinity_reaches_the_divergence_threshold_only(self) -> None:
        assert get_stop(StoppingRule("max", check_finite=False, stopping_threshold=1.0), [INF]) is None
        assert get_stop(StoppingRule("min", check_finite=False, divergence_threshold=1.0), [INF]) == 1
        assert get_stop(StoppingRule("max", check_finite=False, divergence_threshold=1.0), [-INF]) == 1

    def test_threshold_may_be_zero(self) -> None:
        assert get_stop(StoppingRule("min", stopping_threshold=0.0), [0.0]) == 1
        assert get_stop(StoppingRule("max", divergence_threshold=0.0), [0.0]) == 1


@pytest.mark.parametrize("score", [NAN, INF, -INF])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_nonfinite_score_stops_immediately(mode: Mode, score: float) -> None:
    assert get_stop(StoppingRule(mode, patience=99), [1.0, score]) == 2


@pytest.mark.parametrize(
    ("settings", "scores", "reason"),
    [
        ({}, [1.0], None),
        ({}, [NAN], "is not finite, got nan"),
        ({"stopping_threshold": 0.5}, [0.25], "is 0.25 and reached the stopping threshold 0.5"),
        ({"divergence_threshold": 5.0}, [7.0], "is 7 and reached the divergence threshold 5"),
        ({"patience": 1}, [0.5, 0.5], "has not improved on 0.5 (epoch 1) in 1 validation"),
        ({"patience": 2}, [0.5, 0.5, 0.5], "has not improved on 0.5 (epoch 1) in 2 validations"),
        ({"patience": 1, "baseline": 0.25}, [0.5], "has not improved on 0.25 (the baseline) in 1 validation"),
        ({"patience": 1, "check_finite": False}, [NAN], "has not been finite in 1 validation"),
        (
            {"patience": 2, "min_delta": 0.5, "cumulative_delta": False},
            [0.5, 0.25, 0.125],
            "has not gained more than `min_delta` in 2 validations; the best is 0.125 (epoch 3)",
        ),
    ],
)
def test_reason_describes_the_cause_of_the_stop(
    settings: dict[str, Any], scores: list[float], reason: str | None
) -> None:
    rule = StoppingRule("min", **settings)
    get_stop(rule, scores)
    assert rule.reason == reason


SCORES = st.lists(st.sampled_from([NAN, INF, -INF, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]), max_size=12)


SETTINGS = st.fixed_dictionaries(
    {
        "patience": st.integers(0, 4),
        "check_finite": st.booleans(),
        "min_delta_mode": st.sampled_from(["abs", "rel"]),
        "cumulative_delta": st.booleans(),
    }
)


@hypothesis.given(SCORES, st.integers(0, 12), st.sampled_from(["min", "max"]), SETTINGS)
def test_restored_rule_continues_like_the_uninterrupted_one(
    scores: list[float], restart: int, mode: Mode, settings: dict[str, Any]
) -> None:
    uninterrupted, first, second = (StoppingRule(mode, min_delta=0.5, **settings) for _ in range(3))
    for epoch, score in enumerate(scores, 1):
        uninterrupted.update(score, epoch)
        if epoch <= restart:
            first.update(score, epoch)
    second.load_state_dict(first.state_dict())
    assert second.reason == first.reason
    for epoch, score in enumerate(scores[restart:], restart + 1):
        second.update(score, epoch)
    assert second.reason == uninterrupted.reason
    assert (second.best_score, second.best_epoch) == (uninterrupted.best_score, uninterrupted.best_epoch)
    assert second.wait_count == uninterrupted.wait_count


@hypothesis.given(SCORES, st.sampled_from(["min", "max"]))
def test_best_score_is_the_best_of_all_if_gains_do_not_accumulate(scores: list[float], mode: Mode) -> None:
    rule = StoppingRule(mode, min_delta=1.0, cumulative_delta=False)
    get_stop(rule, [*scores])
    finite = [score for score in scores if math.isfinite(score)]
    hypothesis.assume(rule.reason is None)
    best = min if mode == "min" else max
    assert rule.best_score == (best(finite) if finite else None)


@hypothesis.given(SCORES, st.integers(0, 4))
def test_mode_max_is_mode_min_with_inverted_signs(scores: list[float], patience: int) -> None:
    lower = StoppingRule("min", patience=patience, min_delta=0.5, stopping_threshold=0.0, divergence_threshold=2.5)
    higher = StoppingRule("max", patience=patience, min_delta=0.5, stopping_threshold=0.0, divergence_threshold=-2.5)
    assert get_stop(lower, scores) == get_stop(higher, [-score for score in scores])
    assert lower.best_epoch == higher.best_epoch


@pytest.mark.parametrize(("scores", "best"), [([], 0.2), ([0.9], 0.2), ([0.4], 0.4)])
def test_changed_baseline_applies_until_the_first_improvement(scores: list[float], best: float) -> None:
    first, second = StoppingRule("min", baseline=0.5), StoppingRule("min", baseline=0.2)
    for epoch, score in enumerate(scores, 1):
        first.update(score, epoch)
    second.load_state_dict(first.state_dict())
    assert second.best_score == best
