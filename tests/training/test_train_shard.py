from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from hookbus.training.train_shard import Part


def batches(samples: int, size: int, *, drop_last: bool = False) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(samples)), size, drop_last)


def parts(source: Any, world_size: int) -> list[list[Any]]:
    steps = list(source)
    return [Part(rank, world_size).of(source, steps) for rank in range(world_size)]


def test_one_process_reads_everything() -> None:
    source = batches(5, 2)

    assert parts(source, 1) == [[[0, 1], [2, 3], [4]]]
    assert Part().length(source, 3) == 3


def test_batches_are_dealt_out_in_turn_and_the_samples_of_the_last_turn_one_by_one() -> None:
    assert parts(batches(14, 2), 2) == [
        [[0, 1], [4, 5], [8, 9], [12]],
        [[2, 3], [6, 7], [10, 11], [13]],
    ]


def test_a_last_turn_that_is_complete_is_evened_out_as_well() -> None:
    assert parts(batches(7, 2), 2) == [[[0, 1], [4, 6]], [[2, 3], [5]]]


def test_a_sample_that_is_not_there_for_each_rank_is_left_out() -> None:
    assert parts(batches(9, 2), 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


class TestWhatAnotherSamplerDraws:
    SOURCE = (["a", "b"], ["c"], ["d", "e"])

    def test_stays_in_its_batches_and_a_last_turn_that_is_not_complete_is_left_out(self) -> None:
        assert parts(self.SOURCE, 2) == [[["a", "b"]], [["c"]]]
        assert Part(0, 2).length(self.SOURCE, 3) == 1

    def test_may_be_single_samples(self) -> None:
        assert parts(range(5), 2) == [[0, 2], [1, 3]]


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_every_rank_has_as_many_batches_as_it_says_and_no_sample_comes_twice(
    samples: int, size: int, world_size: int, drop_last: bool
) -> None:
    source = batches(samples, size, drop_last=drop_last)
    found = parts(source, world_size)
    drawn = [index for step in source for index in step]
    read = [index for part in found for step in part for index in step]

    assert {len(part) for part in found} == {Part(0, world_size).length(source, len(source))}
    assert len(set(read)) == len(read)
    assert set(read) <= set(drawn)
    assert len(drawn) - len(read) < world_size
    assert all(0 < len(step) <= size for part in found for step in part)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(2, 5))
def test_the_first_batches_of_all_ranks_are_the_first_batch_of_one_rank_that_reads_larger_ones(
    samples: int, size: int, world_size: int
) -> None:
    whole = list(batches(samples, size * world_size))
    found = parts(batches(samples, size), world_size)

    for number, step in enumerate(zip(*found, strict=True)):
        assert sorted(index for part in step for index in part) == whole[number]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_random_order_is_divided_after_it_was_drawn(rank: int) -> None:
    source = BatchSampler(RandomSampler(range(8)), 2, drop_last=False)
    steps = [[5, 1], [0, 7], [2, 6], [3, 4]]

    assert Part(rank, 2).of(source, steps) == [[[5, 1], [2, 3]], [[0, 7], [6, 4]]][rank]
