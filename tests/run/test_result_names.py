"""Tests of result names, and of values that ranks have logged."""

from __future__ import annotations

from hookbus._run.result_names import merge_ranks


def test_values_of_ranks_are_those_of_the_lowest_rank_that_logged_them() -> None:
    gathered = [{"val/a": 1.0}, {"val/a": 1.0, "val/b": 2.0}, {"val/b": 2.0}]
    assert merge_ranks(gathered) == ({"val/a": 1.0, "val/b": 2.0}, [])


def test_values_that_differ_between_ranks_are_described() -> None:
    assert merge_ranks([{"val/a": 1.0}, {"val/a": 4.0}]) == ({"val/a": 1.0}, ["val/a is 1, 4"])


def test_equal_nan_of_ranks_is_no_difference() -> None:
    _, differing = merge_ranks([{"val/a": float("nan")}, {"val/a": float("nan")}])
    assert differing == []
