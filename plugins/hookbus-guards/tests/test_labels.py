from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus_guards.startup import invalid_labels


@pytest.mark.parametrize(
    ("labels", "invalid"),
    [([0, 1, 2], []), ([0, 3, 7, 3], [3, 7]), ([-1, 2], [-1]), ([-100, 0], []), ([], [])],
)
def test_labels_outside_the_class_range_are_invalid(labels: list[int], invalid: list[int]) -> None:
    assert invalid_labels(torch.tensor(labels, dtype=torch.long), 3) == invalid


def test_ignore_index_is_valid() -> None:
    mask = torch.tensor([[0, 255], [2, 254]], dtype=torch.uint8)

    assert invalid_labels(mask, 3, ignore_index=255) == [254]


@pytest.mark.parametrize("targets", [None, [5], torch.ones(2), torch.tensor([True])])
def test_targets_that_are_no_integer_tensor_contain_no_labels(targets: Any) -> None:
    assert invalid_labels(targets, 1) == []
