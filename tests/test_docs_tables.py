"""Tables of the documentation that state rules: what they say is what the code does."""

from __future__ import annotations

import math
from itertools import product

import pytest

from hookbus_early_stopping import Decision, Mode
from tests.pages import ROOT

BEST, DELTA, GOOD, HOPELESS = 0.5, 0.25, {"min": 0.125, "max": 0.875}, {"min": 0.875, "max": 0.125}
SCORES = [0.0, 0.125, 0.1875, 0.25, 0.3125, 0.5, 0.6875, 0.75, 0.8125, 0.875, 1.0]
"""Each limit, and a score on both sides of it; all are exact in binary."""


def comparisons() -> dict[str, dict[str, str]]:
    """The expressions of the table "Comparison rules", by row and mode."""
    page = (ROOT / "docs" / "plugins" / "early-stopping.md").read_text()
    table = page.partition("## Comparison rules\n\n")[2].partition("\n\n")[0]
    head, _, *rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def says(row: str, mode: Mode, **values: float) -> bool:
    return bool(eval(comparisons()[row][mode], {"max": max, **values}))


def test_the_table_has_a_row_for_each_rule_and_a_column_for_each_mode() -> None:
    rows = ["an improvement", "good enough, stop", "diverged, stop", "out of patience, stop"]

    assert list(comparisons()) == rows
    assert all(list(modes) == ["min", "max"] for modes in comparisons().values())


@pytest.mark.parametrize(("mode", "score"), list(product(["min", "max"], SCORES)))
def test_scores_are_compared_as_the_table_says(mode: Mode, score: float) -> None:
    good, hopeless = GOOD[mode], HOPELESS[mode]
    decision = Decision(
        mode, min_delta=DELTA, baseline=BEST, stopping_threshold=good, divergence_threshold=hopeless, patience=9
    )
    improved = decision.update(score, epoch=1)
    reason = decision.reason or ""

    assert improved == says("an improvement", mode, score=score, best=BEST, min_delta=DELTA)
    assert ("stopping threshold" in reason) == says("good enough, stop", mode, score=score, stopping_threshold=good)
    assert ("divergence threshold" in reason) == says(
        "diverged, stop", mode, score=score, divergence_threshold=hopeless
    )


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_patience_is_counted_as_the_table_says(mode: Mode, patience: int) -> None:
    decision = Decision(mode, baseline=BEST, patience=patience)
    for waited in range(1, 5):
        assert not decision.update(BEST, epoch=waited)

        assert (decision.reason is not None) == says("out of patience, stop", mode, waited=waited, patience=patience)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_before_the_first_score_the_baseline_is_the_best_or_any_score_improves(mode: Mode) -> None:
    assert Decision(mode, baseline=BEST).best_score == BEST
    assert Decision(mode).update(1e9, epoch=1)
    assert Decision(mode).update(-1e9, epoch=1)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_score_that_is_not_finite_is_no_improvement_and_stops_where_asked(mode: Mode, score: float) -> None:
    for check_finite in (True, False):
        decision = Decision(mode, check_finite=check_finite)

        assert not decision.update(score, epoch=1)
        assert (decision.reason is not None) is check_finite
