"""What the name of a metric tells about the direction."""

import pytest

from hookbus.rules import infer_rule, undecided


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        ("accuracy", "greater"),
        ("val/accuracy", "greater"),
        ("val_acc", "greater"),
        ("bbox_mAP", "greater"),
        ("top1", "greater"),
        ("loss", "less"),
        ("val_loss", "less"),
        ("word-error", "less"),
        ("RMSE", "less"),
    ],
)
def test_whole_words_of_a_name_tell_the_direction(metric: str, rule: str) -> None:
    assert infer_rule(metric) == rule


@pytest.mark.parametrize(
    "metric", ["inaccuracy", "topology_err0r", "stop_rate", "accuracy_loss", "0_hmean-iou:recall", "lossless", ""]
)
def test_a_name_that_says_nothing_or_both_tells_no_direction(metric: str) -> None:
    assert infer_rule(metric) is None


def test_where_it_tells_nothing_the_remedy_and_a_near_word_are_named() -> None:
    said = "does not tell whether greater or less is better: say rule."
    assert undecided("val/acuracy", "say rule") == f"'val/acuracy' {said} Or is 'accuracy' meant?"
    assert undecided("stop_rate", "say rule") == f"'stop_rate' {said}"
    assert undecided("accuracy_loss", "say rule") == f"'accuracy_loss' {said}"
