"""Comparison of scores, and file names of metrics."""

import math

import pytest

from hookbus_checkpoint.comparison import get_file_stem, is_better


def test_comparison_is_strict() -> None:
    assert is_better(0.9, 0.8, "greater")
    assert not is_better(0.8, 0.8, "greater")
    assert is_better(0.4, 0.5, "less")
    assert not is_better(0.5, 0.5, "less")
    assert is_better(0.1, None, "greater")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("best", [None, 0.5])
def test_nonfinite_score_is_never_better(score: float, best: float | None) -> None:
    assert not is_better(score, best, "greater")
    assert not is_better(score, best, "less")


@pytest.mark.parametrize(
    ("metric", "stem"),
    [
        ("accuracy", "accuracy"),
        ("val/acc", "val_acc"),
        ("../../etc/passwd", "etc_passwd"),
        ("acc,top1: a b", "acc_top1_a_b"),
        ("...", "metric"),
        ("Genauigkeit äöü", "Genauigkeit_äöü"),
        ("точность", "точность"),
        ("val/准确率", "val_准确率"),
        ("re\u0301ussite", "r\u00e9ussite"),
        ("a" * 300, "a" * 180),
        ("率" * 100, "率" * 60),
        ("acc\x00\n\u2028\u202e1", "acc_1"),
    ],
)
def test_file_stem_of_a_metric_contains_no_path(metric: str, stem: str) -> None:
    assert get_file_stem(metric) == stem
