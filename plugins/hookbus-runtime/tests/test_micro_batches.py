from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from hookbus_runtime.micro_batches import format_shapes, get_batch_size, merge_outputs, split_batch

Item = namedtuple("Item", ["image", "scale"])
NUMBERS = torch.arange(5.0)


def to_lists(value: Any) -> Any:
    """Convert tensors to lists, so that nested values can be compared."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: to_lists(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_lists, value))
    return type(value)(map(to_lists, value)) if isinstance(value, (tuple, list)) else value


class TestSplitBatch:
    @pytest.mark.parametrize(
        ("batch", "parts"),
        [
            (NUMBERS, [[0, 1], [2, 3, 4]]),
            ((NUMBERS, NUMBERS * 2), [([0, 1], [0, 2]), ([2, 3, 4], [4, 6, 8])]),
            ({"x": NUMBERS, "name": "a"}, [{"x": [0, 1], "name": "a"}, {"x": [2, 3, 4], "name": "a"}]),
            ([NUMBERS, list("abcde")], [[[0, 1], ["a", "b"]], [[2, 3, 4], ["c", "d", "e"]]]),
            (Item(NUMBERS, torch.tensor(3.0)), [Item([0, 1], 3.0), Item([2, 3, 4], 3.0)]),
            ((NUMBERS, torch.ones(2)), [([0, 1], [1, 1]), ([2, 3, 4], [1, 1])]),
        ],
    )
    def test_values_with_an_element_per_sample_are_split(self, batch: Any, parts: list[Any]) -> None:
        assert [to_lists(part) for part in split_batch(batch, [2, 3])] == parts


class TestGetBatchSize:
    def test_size_is_the_length_of_the_first_tensor_that_is_no_scalar(self) -> None:
        assert get_batch_size((torch.tensor(1.0), {"x": NUMBERS})) == 5
        assert get_batch_size("text") == 0

    def test_shapes_are_formatted_as_text(self) -> None:
        assert (
            format_shapes((torch.ones(2, 3), {"y": torch.zeros(2, dtype=torch.long)})) == "(2, 3) float32, (2,) int64"
        )


class TestMergeOutputs:
    def test_scalars_are_summed_and_samples_concatenated(self) -> None:
        outputs = [
            {"loss": torch.tensor(1.0), "output": torch.ones(1, 2), "acc": 1.0, "count": torch.tensor(3), "tag": "a"},
            {"loss": torch.tensor(4.0), "output": torch.zeros(2, 2), "acc": 0.25, "count": torch.tensor(5), "tag": "b"},
        ]
        merged = merge_outputs(outputs, [1 / 3, 2 / 3], [1, 2])

        assert merged["loss"].item() == pytest.approx(3.0)
        assert merged["acc"] == pytest.approx(0.5)
        assert merged["output"].tolist() == [[1, 1], [0, 0], [0, 0]]
        assert (merged["count"].item(), merged["tag"]) == (5, "b")
