"""Tests of the direction of a metric."""

import pytest

from hookbus.metrics.direction import ambiguous_direction_message, infer_direction


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
def test_words_of_a_name_determine_the_direction(metric: str, rule: str) -> None:
    assert infer_direction(metric) == rule


@pytest.mark.parametrize(
    "metric", ["inaccuracy", "topology_err0r", "stop_rate", "accuracy_loss", "0_hmean-iou:recall", "lossless", ""]
)
def test_unknown_and_contradictory_names_have_no_direction(metric: str) -> None:
    assert infer_direction(metric) is None


def test_message_contains_the_fix_and_a_similar_word() -> None:
    end = "does not determine whether greater or less is better. Set `rule`."
    assert (
        ambiguous_direction_message("val/acuracy", "Set `rule`")
        == f"the name 'val/acuracy' {end} Did you mean 'accuracy'?"
    )
    assert ambiguous_direction_message("stop_rate", "Set `rule`") == f"the name 'stop_rate' {end}"
    assert ambiguous_direction_message("accuracy_loss", "Set `rule`") == f"the name 'accuracy_loss' {end}"
