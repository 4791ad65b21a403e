from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus_guards.labels import wrong_labels


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [([0, 1, 2], []), ([0, 3, 7, 3], [3, 7]), ([-1, 2], [-1]), ([-100, 0], []), ([], [])],
)
def test_labels_are_from_zero_to_below_the_number_of_classes(labels: list[int], wrong: list[int]) -> None:
    assert wrong_labels(torch.tensor(labels, dtype=torch.long), 3) == wrong


def test_the_label_that_means_nothing_may_be_another_one() -> None:
    mask = torch.tensor([[0, 255], [2, 254]], dtype=torch.uint8)

    assert wrong_labels(mask, 3, ignore_index=255) == [254]


@pytest.mark.parametrize("targets", [None, [5], torch.ones(2), torch.tensor([True])])
def test_other_targets_hold_no_labels(targets: Any) -> None:
    assert wrong_labels(targets, 1) == []
