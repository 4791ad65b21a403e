"""Number of samples of the batches of a run: order of the sources, warnings and errors."""

from __future__ import annotations

import weakref
from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from hookbus.data.batch_sizes import BatchSizes, batch_size, describe_batch, plausible_sizes, quick_size
from hookbus.errors import LoopError

SMALL_IMAGES = [torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)]


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def sizes(warnings: list[str]) -> BatchSizes:
    return BatchSizes(None, warnings.append)


class TestOrder:
    def test_function_precedes_the_attribute_and_the_sampler(self, warnings: list[str]) -> None:
        sizes, batch = BatchSizes(lambda batch: 7, warnings.append), Graphs(5)
        sizes.hand_out(batch, 6)

        assert sizes.measure(batch) == 7

    def test_attribute_precedes_the_sampler(self, sizes: BatchSizes) -> None:
        batch = Graphs(5)
        sizes.hand_out(batch, 6)

        assert sizes.measure(batch) == 5

    def test_sampler_precedes_the_shape(self, sizes: BatchSizes, warnings: list[str]) -> None:
        batch = torch.zeros(1, 4096)  # 5 sequences packed into one
        sizes.hand_out(batch, 5)

        assert sizes.measure(batch) == 5
        assert not warnings

    def test_shape_is_used_without_the_other_sources(self, sizes: BatchSizes, warnings: list[str]) -> None:
        assert sizes.measure((torch.zeros(4, 2), torch.zeros(4))) == 4
        assert sizes.measure({"id": ["a", "b"], "x": torch.zeros(2, 3)}) == 2
        assert not warnings


class TestHandedOutBatches:
    def test_batch_in_another_form_has_the_size_of_the_sampler(self, sizes: BatchSizes) -> None:
        sizes.hand_out([image.clone() for image in SMALL_IMAGES], 6)

        assert sizes.measure(SMALL_IMAGES) == 6

    def test_part_of_a_batch_has_its_own_size(self, sizes: BatchSizes) -> None:
        batch = torch.zeros(8, 3)
        sizes.hand_out(batch, 8)

        assert [sizes.measure(part) for part in batch.split(4)] == [4, 4]

    def test_batches_of_two_loaders_have_their_own_sizes(self, sizes: BatchSizes) -> None:
        first, second = torch.zeros(1, 5), torch.zeros(1, 6)
        sizes.hand_out(first, 2)
        sizes.hand_out(second, 3)

        assert sizes.measure(first) == 2

    def test_omitted_batch_is_the_last_one_that_was_handed_out(self, sizes: BatchSizes) -> None:
        sizes.hand_out(torch.zeros(8, 3), 8)

        assert sizes.measure(None) == 8
        assert sizes.measure(None) is None

    def test_measured_batch_is_released(self, sizes: BatchSizes) -> None:
        batch = torch.zeros(2, 3)
        reference = weakref.ref(batch)
        sizes.hand_out(batch, 2)
        sizes.measure(batch)
        del batch

        assert reference() is None


class TestWarnings:
    def test_ambiguous_batch_is_reported_once(self, sizes: BatchSizes, warnings: list[str]) -> None:
        assert [sizes.measure(SMALL_IMAGES), sizes.measure(SMALL_IMAGES)] == [2, 2]
        assert warnings == [
            "batch_size: the number of samples of a batch is ambiguous, got list of 2 (Tensor of shape (3, 8, 8), "
            "Tensor of shape (3, 9, 9)). Counted 2 and not 3; the means of a validation are weighted by this number. "
            "Pass `batch_size`, a function of the batch, to the Trainer or to bus.run, or define an attribute "
            "`batch_size` of the batch."
        ]

    def test_batch_of_unknown_size_is_reported(self, sizes: BatchSizes, warnings: list[str]) -> None:
        assert sizes.measure(object()) is None
        assert warnings[0].startswith(
            "batch_size: the number of samples of a batch is unknown, so none are counted, got object. Pass"
        )

    @pytest.mark.parametrize("batch", [None, 3, "text"])
    def test_batch_that_is_no_collection_is_not_reported(
        self, sizes: BatchSizes, warnings: list[str], batch: Any
    ) -> None:
        assert sizes.measure(batch) is None
        assert not warnings


class TestFunction:
    def test_result_may_be_an_integer_of_numpy(self, warnings: list[str]) -> None:
        size = BatchSizes(lambda batch: np.int64(4), warnings.append).measure("batch")

        assert (type(size), size) == (int, 4)

    @pytest.mark.parametrize("result", [-1, 2.0, True, None, "4", torch.tensor(4)], ids=repr)
    def test_result_that_is_no_count_is_an_error(self, warnings: list[str], result: Any) -> None:
        with pytest.raises(LoopError, match=r"batch_size: the function must return an integer >= 0, got .*\. Return"):
            BatchSizes(lambda batch: result, warnings.append).measure("batch")

    def test_function_is_not_called_without_a_batch(self, warnings: list[str]) -> None:
        assert BatchSizes(len, warnings.append).measure(None) is None


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
