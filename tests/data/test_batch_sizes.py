"""Number of samples of the batches of a run: order of the sources, warnings and errors."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch

from hookbus.data.batch_sizes import BatchSizes
from hookbus.errors import LoopError

IMAGES = [torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)]


class Graphs:
    batch_size = 5


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def sizes(warnings: list[str]) -> BatchSizes:
    return BatchSizes(None, warnings.append)


class TestOrder:
    def test_function_precedes_the_attribute_and_the_sampler(self, warnings: list[str]) -> None:
        sizes, batch = BatchSizes(lambda batch: 7, warnings.append), Graphs()
        sizes.hand_out(batch, 6)

        assert sizes.measure(batch) == 7

    def test_attribute_precedes_the_sampler(self, sizes: BatchSizes) -> None:
        batch = Graphs()
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
        sizes.hand_out([image.clone() for image in IMAGES], 6)

        assert sizes.measure(IMAGES) == 6

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
        assert [sizes.measure(IMAGES), sizes.measure(IMAGES)] == [2, 2]
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
