"""Number of samples of batches of any nesting."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from hookbus.data.collections import batch_size, describe_batch, plausible_sizes, quick_size


class Pair(NamedTuple):
    image: Any
    target: Any


@dataclass
class Record:
    image: Any
    target: Any


@attrs.define
class Fields:
    image: Any
    target: Any


class Graphs:
    """Batch of graphs with 9 nodes."""

    def __init__(self, size: Any) -> None:
        self.batch_size, self.shape = size, (9,)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


IMAGES = [zeros(3, 8, 9), zeros(3, 9, 9)]
LABELS = [torch.tensor(0), torch.tensor(1)]
BOXES = [{"boxes": zeros(1, 4), "labels": zeros(1)}, {"boxes": zeros(5, 4), "labels": zeros(5)}]

CLEAR = [
    (zeros(6, 3), 6),
    (zeros(), 1),
    (np.zeros((6, 3)), 6),
    ((zeros(4, 2), zeros(4)), 4),
    ([zeros(4, 2), zeros(4)], 4),
    ([zeros(4, 2), zeros(4, 7)], 4),
    ([zeros(4, 3, 8, 8), zeros(4, 3, 8, 8)], 4),
    ((zeros(4, 2), zeros(4), zeros(4, 1)), 4),
    ([[zeros(4, 3), zeros(4, 5)], zeros(4)], 4),
    ({"image": zeros(7, 1), "target": None}, 7),
    (UserDict(input_ids=zeros(4, 7), labels=zeros(4)), 4),
    ({"id": ["a", "b"], "image": zeros(2, 3), "target": zeros(2)}, 2),
    ({"size": (224, 224), "image": zeros(2, 3)}, 2),
    ({"first": {"x": zeros(6, 1)}, "second": {"y": zeros(6)}}, 6),
    (({"ids": zeros(4, 7)}, zeros(4)), 4),
    ([{"ids": zeros(4, 7), "mask": zeros(4, 7)}, {"labels": zeros(4)}], 4),
    ((IMAGES, LABELS), 2),
    ((tuple(IMAGES), tuple(BOXES)), 2),
    ([IMAGES, BOXES], 2),
    ({"images": [zeros(3, 8, 9)] * 3, "labels": zeros(3)}, 3),
    ({"images": IMAGES, "labels": zeros(2)}, 2),
    ([{"image": zeros(3, 8, 9), "label": 1}, {"image": zeros(3, 8, 9), "label": 0}], 2),
    ([{"image": 1}, {"image": 2}], 2),
    ([Record(zeros(3, 8, 9), 1), Record(zeros(3, 8, 9), 0)], 2),
    (BOXES, 2),
    (Pair(zeros(2, 2), 0), 2),
    (Record(zeros(2, 2), [1, 2]), 2),
    (Fields(zeros(2, 2), zeros(2)), 2),
    ((Record(zeros(2), zeros(2)), zeros(2)), 2),
    (pack_sequence([zeros(3), zeros(2)]), 2),
    ((pack_sequence([zeros(3), zeros(2)]), zeros(2)), 2),
    (["a", "b", "c"], 3),
    ((["a", "b", "c"], ["d", "e", "f"]), 3),
    ({"inputs": [zeros(3), zeros(5)]}, 2),
    (Graphs(4), 4),
    (Graphs(torch.Size([4, 2])), 4),
    (Graphs(None), 9),
    (Graphs(True), 9),
    ((Graphs(4), zeros(4)), 4),
    (zeros(0, 3), 0),
]


class TestSizes:
    @pytest.mark.parametrize(("batch", "size"), CLEAR, ids=lambda value: describe_batch(value, 1))
    def test_size_of_a_clear_batch_is_its_number_of_samples(self, batch: Any, size: int) -> None:
        assert plausible_sizes(batch) == [size]
        assert batch_size(batch) == size
        assert quick_size(batch) in (size, None)

    @pytest.mark.parametrize(
        "batch",
        [zeros(4, 2), (zeros(4, 2), zeros(4)), [zeros(4, 2), zeros(4, 3)], {"x": zeros(4, 2), "y": zeros(4)}],
        ids=lambda value: describe_batch(value, 1),
    )
    def test_size_of_a_common_batch_is_found_quickly(self, batch: Any) -> None:
        assert quick_size(batch) == 4

    @pytest.mark.parametrize(
        ("batch", "sizes"),
        [
            (IMAGES, [2, 3]),  # two images or a batch of three
            ([zeros(3, 8, 9)] * 5, [5, 3]),
            ([zeros(3, 8, 9)] * 2, [3, 2]),
            ((IMAGES, "text"), [2, 3]),
            ([zeros(5), zeros(7)], [2, 5, 7]),
            ((zeros(4, 7), zeros(20, 7)), [4, 20, 2]),  # such as queries and negatives
            ({"query": zeros(4, 7), "negatives": zeros(20, 7), "label": zeros(4)}, [4, 20]),
            ([{"image": zeros(3, 8, 9)}] * 2, [2, 3]),  # two samples or two views of three
            (({"image": zeros(3, 8, 9)},) * 2, [3, 2]),
        ],
        ids=lambda value: describe_batch(value, 1),
    )
    def test_sizes_of_an_ambiguous_batch_start_with_the_most_plausible(self, batch: Any, sizes: list[int]) -> None:
        assert plausible_sizes(batch) == sizes
        assert batch_size(batch) == sizes[0]

    @pytest.mark.parametrize("batch", [None, "text", 3, [], {}, ("text", 3), len, {"x": len}], ids=str)
    def test_size_of_a_batch_without_tensors_or_lists_is_zero(self, batch: Any) -> None:
        assert plausible_sizes(batch) == []
        assert batch_size(batch) == 0

    def test_size_of_a_strided_nested_tensor_is_its_number_of_tensors(self) -> None:
        with pytest.warns(UserWarning, match="nested tensors"):
            nested = torch.nested.nested_tensor([zeros(3), zeros(2)])

        assert plausible_sizes(nested) == [2]


def test_description_of_a_batch_names_types_lengths_and_shapes() -> None:
    assert describe_batch({"id": ["a", "b", "c"], "x": zeros(3, 2)}) == (
        "dict (id: list of 3 (str, str, ...), x: Tensor of shape (3, 2))"
    )
