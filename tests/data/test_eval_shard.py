"""Shards of evaluation data with simulated ranks; tests/distributed uses real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from hookbus.data.eval_shard import shard_loader
from hookbus.data.rng import isolate_rng

dataset_sizes = st.integers(0, 40)
world_sizes = st.integers(1, 6)


def make_loader(count: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(list(range(count)), **options)


def make_shards(loader: Any, world_size: int, *, seed: int = 0) -> list[list[list[int]]]:
    """Return the batches of each rank as lists, read with different RNG states on each rank."""
    shards = []
    for rank in range(world_size):
        with isolate_rng():
            torch.manual_seed(rank)
            batches = list(shard_loader(loader, rank, world_size, seed))
        shards.append([torch.as_tensor(batch).flatten().tolist() for batch in batches])
    return shards


def count_samples(shards: list[list[list[int]]]) -> Counter[int]:
    return Counter(index for batches in shards for batch in batches for index in batch)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class TestBatches:
    @settings(deadline=None)
    @given(dataset_sizes, st.integers(1, 7), world_sizes, st.booleans())
    def test_each_batch_of_a_single_process_is_evaluated_once(
        self, count: int, batch_size: int, world_size: int, drop_last: bool
    ) -> None:
        loader = make_loader(count, batch_size=batch_size, drop_last=drop_last)
        shards = make_shards(loader, world_size)
        batches = [batch.tolist() for batch in loader]

        assert [batches[rank::world_size] for rank in range(world_size)] == shards
        if not drop_last:
            assert count_samples(shards) == Counter(range(count))

    @pytest.mark.slow
    @settings(deadline=None)
    @given(dataset_sizes, world_sizes)
    def test_each_sample_of_a_shuffled_loader_is_evaluated_once(self, count: int, world_size: int) -> None:
        for seed in (1, 2):
            assert count_samples(
                make_shards(make_loader(max(count, 1), shuffle=True), world_size, seed=seed)
            ) == Counter(range(max(count, 1)))

    def test_each_sample_is_evaluated_once_with_a_generator_in_the_sampler(self) -> None:
        sampler = RandomSampler(range(11), generator=torch.Generator().manual_seed(4))

        assert count_samples(make_shards(make_loader(11, batch_sampler=BatchSampler(sampler, 2, False)), 3)) == Counter(
            range(11)
        )

    def test_loader_without_batching_is_sharded_by_sample(self) -> None:
        assert make_shards(make_loader(5, batch_size=None), 2) == [[[0], [2], [4]], [[1], [3]]]

    def test_batches_are_read_by_workers(self) -> None:
        loader = make_loader(5, batch_size=2, num_workers=1, persistent_workers=True, prefetch_factor=3, timeout=30)

        assert make_shards(loader, 2) == [[[0, 1], [4]], [[2, 3]]]


def test_rank_reads_only_its_samples() -> None:
    class RecordingDataset(list[int]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    read: list[int] = []
    make_shards(DataLoader(RecordingDataset(range(6)), batch_size=2), 1)
    assert read == [0, 1, 2, 3, 4, 5]

    read.clear()
    list(shard_loader(DataLoader(RecordingDataset(range(6)), batch_size=2), 1, 3, 0))
    assert read == [2, 3]


def test_collate_function_is_kept() -> None:
    loader = make_loader(4, batch_size=2, collate_fn=lambda samples: [10 * sample for sample in samples])

    assert make_shards(loader, 2) == [[[0, 10]], [[20, 30]]]


@pytest.mark.parametrize("stream", [list(range(7)), DataLoader(Stream())])
def test_loader_that_cannot_be_reordered_is_not_sharded(stream: Any) -> None:
    assert shard_loader(stream, 0, 2, 0) is None


class TestDistributedSampler:
    @pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": None}])
    def test_padding_sampler_of_torch_is_replaced(self, options: dict[str, Any]) -> None:
        """DistributedSampler pads 7 samples to 9 for 3 processes."""
        data = list(range(7))
        loaders = [DataLoader(data, sampler=DistributedSampler(data, 3, rank), **options) for rank in range(3)]
        assert sum(len(loader.sampler) for loader in loaders) == 9
        shards = [list(shard_loader(loader, rank, 3, 0)) for rank, loader in enumerate(loaders)]
        indices = [[torch.as_tensor(batch).flatten().tolist() for batch in batches] for batches in shards]

        assert count_samples(indices) == Counter(data)

    def test_custom_distributed_sampler_is_not_sharded_again(self) -> None:
        class CustomSampler(Sampler[int]):
            num_replicas = 2

            def __len__(self) -> int:
                return 2

            def __iter__(self) -> Iterator[int]:
                return iter([1, 3])

        assert shard_loader(make_loader(4, sampler=CustomSampler()), 1, 2, 0) is None
