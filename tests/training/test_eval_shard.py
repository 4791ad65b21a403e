"""Which batches each process judges; the processes are numbers here, real ones are in tests/distributed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from hookbus.training.eval_shard import share_of
from hookbus.training.rng import preserved_rng

sizes = st.integers(0, 40)
worlds = st.integers(1, 6)


def loader_of(count: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(list(range(count)), **options)


def shares(loader: Any, world_size: int, *, seed: int = 0) -> list[list[list[int]]]:
    """The batches of each process, as lists; each process has random streams of its own."""
    found = []
    for rank in range(world_size):
        with preserved_rng():
            torch.manual_seed(rank)
            batches = list(share_of(loader, rank, world_size, seed))
        found.append([torch.as_tensor(batch).flatten().tolist() for batch in batches])
    return found


def samples(found: list[list[list[int]]]) -> Counter[int]:
    return Counter(index for batches in found for batch in batches for index in batch)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class TestABatch:
    @settings(deadline=None)
    @given(sizes, st.integers(1, 7), worlds, st.booleans())
    def test_is_judged_once_and_is_that_of_one_process(
        self, count: int, batch_size: int, world_size: int, drop_last: bool
    ) -> None:
        loader = loader_of(count, batch_size=batch_size, drop_last=drop_last)
        found = shares(loader, world_size)
        whole = [batch.tolist() for batch in loader]

        assert [whole[rank::world_size] for rank in range(world_size)] == found
        if not drop_last:
            assert samples(found) == Counter(range(count))

    @settings(deadline=None)
    @given(sizes, worlds)
    def test_is_judged_once_in_an_order_that_each_process_would_draw_by_itself(
        self, count: int, world_size: int
    ) -> None:
        for seed in (1, 2):
            assert samples(shares(loader_of(max(count, 1), shuffle=True), world_size, seed=seed)) == Counter(
                range(max(count, 1))
            )

    def test_that_is_drawn_by_a_generator_of_the_sampler_is_judged_once(self) -> None:
        sampler = RandomSampler(range(11), generator=torch.Generator().manual_seed(4))

        assert samples(shares(loader_of(11, batch_sampler=BatchSampler(sampler, 2, False)), 3)) == Counter(range(11))

    def test_is_a_single_sample_where_the_loader_makes_no_batches(self) -> None:
        assert shares(loader_of(5, batch_size=None), 2) == [[[0], [2], [4]], [[1], [3]]]

    def test_is_read_by_workers_as_well(self) -> None:
        loader = loader_of(5, batch_size=2, num_workers=1, persistent_workers=True, prefetch_factor=3, timeout=30)

        assert shares(loader, 2) == [[[0, 1], [4]], [[2, 3]]]


def test_only_its_own_samples_are_read() -> None:
    class Noting(list[int]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    read: list[int] = []
    shares(DataLoader(Noting(range(6)), batch_size=2), 1)
    assert read == [0, 1, 2, 3, 4, 5]

    read.clear()
    list(share_of(DataLoader(Noting(range(6)), batch_size=2), 1, 3, 0))
    assert read == [2, 3]


def test_how_the_loader_makes_batches_is_kept() -> None:
    loader = loader_of(4, batch_size=2, collate_fn=lambda found: [10 * each for each in found])

    assert shares(loader, 2) == [[[0, 10]], [[20, 30]]]


@pytest.mark.parametrize("stream", [list(range(7)), DataLoader(Stream())])
def test_of_what_cannot_be_read_in_another_order_there_is_no_share(stream: Any) -> None:
    assert share_of(stream, 0, 2, 0) is None


class TestASamplerThatKnowsOfProcesses:
    @pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": None}])
    def test_and_pads_makes_way(self, options: dict[str, Any]) -> None:
        """torch's own gives 7 samples to 3 processes as 9."""
        data = list(range(7))
        loaders = [DataLoader(data, sampler=DistributedSampler(data, 3, rank), **options) for rank in range(3)]
        assert sum(len(loader.sampler) for loader in loaders) == 9
        found = [list(share_of(loader, rank, 3, 0)) for rank, loader in enumerate(loaders)]

        assert samples([[torch.as_tensor(b).flatten().tolist() for b in each] for each in found]) == Counter(data)

    def test_and_is_nobody_we_know_has_shared_it_already(self) -> None:
        class OfOnesOwn(Sampler[int]):
            num_replicas = 2

            def __len__(self) -> int:
                return 2

            def __iter__(self) -> Iterator[int]:
                return iter([1, 3])

        assert share_of(loader_of(4, sampler=OfOnesOwn()), 1, 2, 0) is None
