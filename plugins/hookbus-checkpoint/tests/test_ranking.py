"""Ranking of results: which files are kept, in which order, for tables that are worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import Direction
from hookbus_checkpoint.ranking import RankedFile, Ranking

NAN, INF = math.nan, math.inf


def rank(size: int, rule: Direction, scores: list[float], ranking: Ranking | None = None, first: int = 1) -> list[int]:
    """Add the scores that are accepted, remove the excess after each, and return the numbers of the kept files."""
    ranking = ranking or Ranking(size)
    for number, score in enumerate(scores, first):
        if ranking.accepts("val/m", score, rule):
            ranking.add("val/m", RankedFile(str(number), score, number), rule)
        for metric, file in ranking.iter_excess():
            ranking.discard(metric, file)
    return [int(file.name) for file in ranking.files.get("val/m", [])]


@pytest.mark.parametrize(
    ("size", "rule", "scores", "kept"),
    [
        (2, "less", [3, 1, 2, 4], [2, 3]),
        (2, "greater", [3, 1, 2, 4], [4, 1]),
        (3, "less", [5, 4, 3, 2, 1], [5, 4, 3]),
        (3, "greater", [5, 4, 3, 2, 1], [1, 2, 3]),
        (3, "less", [2, 1], [2, 1]),
        # Of equal results the earlier file is kept, and it comes first.
        (2, "less", [1, 1, 1], [1, 2]),
        (2, "greater", [1, 1, 1], [1, 2]),
        (2, "less", [2, 1, 1, 1], [2, 3]),
        (2, "less", [2, 3, 2], [1, 3]),
        (2, "greater", [0.5, 0.5, 0.6], [3, 1]),
        # NaN and infinity never rank, also in a ranking that is not full.
        (2, "less", [NAN, 1, NAN], [2]),
        (2, "greater", [INF, -INF, 1], [3]),
        (2, "less", [1, 2, NAN, 0, NAN], [4, 1]),
        (-1, "less", [2, NAN, 3, 1], [4, 1, 3]),
        (-1, "greater", [2, 3, 1, 3], [2, 4, 1, 3]),
        # The best file itself is not part of a ranking.
        (0, "less", [2, 1], []),
        (1, "less", [2, 1], []),
        (2, "less", [0.0, -0.0, -1], [3, 1]),
    ],
)
def test_kept_files(size: int, rule: Direction, scores: list[float], kept: list[int]) -> None:
    assert rank(size, rule, scores) == kept


@given(
    st.lists(st.one_of(st.integers(0, 5).map(float), st.just(NAN)), max_size=12),
    st.integers(2, 4),
    st.sampled_from(["less", "greater"]),
    st.integers(0, 12),
)
def test_kept_files_are_the_first_of_the_sorted_results(scores: list[float], size: int, rule: Any, split: int) -> None:
    sign = 1 if rule == "less" else -1
    finite = [(sign * score, number) for number, score in enumerate(scores, 1) if not math.isnan(score)]
    expected = [number for _, number in sorted(finite)[:size]]

    assert rank(size, rule, scores) == expected
    # The same after a resume.
    before, after = Ranking(size), Ranking(size)
    rank(size, rule, scores[:split], before)
    after.load_state_dict(before.state_dict())
    assert rank(size, rule, scores[split:], after, first=split + 1) == expected


def test_file_that_waits_for_its_removal_is_not_compared() -> None:
    ranking = Ranking(2)
    for number, score in enumerate([1.0, 2.0, 0.5], 1):
        ranking.add("m", RankedFile(str(number), score, number), "less")

    assert [file.name for _, file in ranking.iter_excess()] == ["2"]
    assert not ranking.accepts("m", 1.5, "less")
    assert ranking.accepts("m", 0.7, "less")


def test_smaller_size_removes_the_worst_files_first() -> None:
    ranking = Ranking(-1)
    for number, score in enumerate([3.0, 1.0, 2.0, 4.0], 1):
        ranking.add("m", RankedFile(str(number), score, number), "less")
    ranking.size = 2
    assert [file.name for _, file in ranking.iter_excess()] == ["4", "1"]
    ranking.size = 1
    assert [file.name for _, file in ranking.iter_excess()] == ["4", "1", "3", "2"]


def test_files_without_a_file_on_disk_leave_their_places() -> None:
    ranking = Ranking(2, {"m": [first := RankedFile("1", 1.0, 1), RankedFile("2", 2.0, 2)]})
    assert ranking.remove_missing(lambda name: name != "1") == [("m", first)]
    assert [file.name for file in ranking.files["m"]] == ["2"]
    assert ranking.accepts("m", 9.0, "less")
