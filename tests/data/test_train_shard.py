from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from hookbus.data.train_shard import TrainShard


def batch_sampler(samples: int, size: int, *, drop_last: bool = False) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(samples)), size, drop_last)


def make_shards(source: Any, world_size: int) -> list[list[Any]]:
    steps = list(source)
    return [list(TrainShard(rank, world_size).select(source, steps)) for rank in range(world_size)]


def test_single_process_reads_all_batches() -> None:
    source = batch_sampler(5, 2)

    assert make_shards(source, 1) == [[[0, 1], [2, 3], [4]]]
    assert TrainShard().length(source, 3) == 3


def test_batches_are_assigned_round_robin_and_the_last_round_sample_by_sample() -> None:
    assert make_shards(batch_sampler(14, 2), 2) == [
        [[0, 1], [4, 5], [8, 9], [12]],
        [[2, 3], [6, 7], [10, 11], [13]],
    ]


def test_complete_last_round_is_redistributed() -> None:
    assert make_shards(batch_sampler(7, 2), 2) == [[[0, 1], [4, 6]], [[2, 3], [5]]]


def test_samples_that_do_not_suffice_for_all_ranks_are_dropped() -> None:
    assert make_shards(batch_sampler(9, 2), 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


class TestCustomSampler:
    SOURCE = (["a", "b"], ["c"], ["d", "e"])

    def test_batches_are_not_split_and_an_incomplete_last_round_is_dropped(self) -> None:
        assert make_shards(self.SOURCE, 2) == [[["a", "b"]], [["c"]]]
        assert TrainShard(0, 2).length(self.SOURCE, 3) == 1

    def test_sampler_may_yield_single_indices(self) -> None:
        assert make_shards(range(5), 2) == [[0, 2], [1, 3]]


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_ranks_have_equal_lengths_and_no_sample_is_read_twice(
    samples: int, size: int, world_size: int, drop_last: bool
) -> None:
    source = batch_sampler(samples, size, drop_last=drop_last)
    shards = make_shards(source, world_size)
    drawn = [index for step in source for index in step]
    read = [index for shard in shards for step in shard for index in step]

    assert {len(shard) for shard in shards} == {TrainShard(0, world_size).length(source, len(source))}
    assert len(set(read)) == len(read)
    assert set(read) <= set(drawn)
    assert len(drawn) - len(read) < world_size
    assert all(0 < len(step) <= size for shard in shards for step in shard)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(2, 5))
def test_batches_of_all_ranks_equal_the_larger_batch_of_one_process(samples: int, size: int, world_size: int) -> None:
    large = list(batch_sampler(samples, size * world_size))
    shards = make_shards(batch_sampler(samples, size), world_size)

    for number, steps in enumerate(zip(*shards, strict=True)):
        assert sorted(index for step in steps for index in step) == large[number]


@pytest.mark.parametrize("rank", [0, 1])
def test_random_order_is_sharded_after_sampling(rank: int) -> None:
    source = BatchSampler(RandomSampler(range(8)), 2, drop_last=False)
    steps = [[5, 1], [0, 7], [2, 6], [3, 4]]

    assert list(TrainShard(rank, 2).select(source, steps)) == [[[5, 1], [2, 3]], [[0, 7], [6, 4]]][rank]
