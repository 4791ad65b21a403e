"""Tests of tables in the documentation against the behavior that they describe."""

from __future__ import annotations

import math
from itertools import product

import pytest

from hookbus_early_stopping import Mode, StoppingRule
from tests.pages import ROOT

BEST, DELTA, GOOD, DIVERGED = 0.5, 0.25, {"min": 0.125, "max": 0.875}, {"min": 0.875, "max": 0.125}
SCORES = [0.0, 0.125, 0.1875, 0.25, 0.3125, 0.5, 0.6875, 0.75, 0.8125, 0.875, 1.0]
"""Scores on both sides of each limit; all values are exact in binary floating point."""


def comparisons() -> dict[str, dict[str, str]]:
    """Return the expressions of the table "Comparison rules" by row and mode."""
    page = (ROOT / "docs" / "plugins" / "early-stopping.md").read_text()
    table = page.partition("## Comparison rules\n\n")[2].partition("\n\n")[0]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def evaluate(row: str, mode: Mode, **values: float) -> bool:
    return bool(eval(comparisons()[row][mode], {"max": max, **values}))


def test_table_has_a_row_per_rule_and_a_column_per_mode() -> None:
    rows = ["an improvement", "good enough, stop", "diverged, stop", "out of patience, stop"]

    assert list(comparisons()) == rows
    assert all(list(modes) == ["min", "max"] for modes in comparisons().values())


@pytest.mark.parametrize(("mode", "score"), list(product(["min", "max"], SCORES)))
def test_scores_are_compared_as_documented(mode: Mode, score: float) -> None:
    good, divergence = GOOD[mode], DIVERGED[mode]
    decision = StoppingRule(
        mode, min_delta=DELTA, baseline=BEST, stopping_threshold=good, divergence_threshold=divergence, patience=9
    )
    improved = decision.update(score, epoch=1)
    reason = decision.reason or ""

    assert improved == evaluate("an improvement", mode, score=score, best=BEST, delta=DELTA)
    assert ("stopping threshold" in reason) == evaluate("good enough, stop", mode, score=score, stopping_threshold=good)
    assert ("divergence threshold" in reason) == evaluate(
        "diverged, stop", mode, score=score, divergence_threshold=divergence
    )


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_patience_is_counted_as_documented(mode: Mode, patience: int) -> None:
    decision = StoppingRule(mode, baseline=BEST, patience=patience)
    for waited in range(1, 5):
        assert not decision.update(BEST, epoch=waited)

        assert (decision.reason is not None) == evaluate(
            "out of patience, stop", mode, waited=waited, patience=patience
        )


@pytest.mark.parametrize("mode", ["min", "max"])
def test_first_score_is_compared_with_the_baseline(mode: Mode) -> None:
    assert StoppingRule(mode, baseline=BEST).best_score == BEST
    assert StoppingRule(mode).update(1e9, epoch=1)
    assert StoppingRule(mode).update(-1e9, epoch=1)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_non_finite_score_does_not_improve_and_may_stop(mode: Mode, score: float) -> None:
    for check_finite in (True, False):
        decision = StoppingRule(mode, check_finite=check_finite)

        assert not decision.update(score, epoch=1)
        assert (decision.reason is not None) is check_finite
