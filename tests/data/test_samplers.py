"""Samplers whose order depends on seed and position only, and that are read in parts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from hookbus.data import samplers
from hookbus.data.rng import get_rng_state, isolate_rng
from hookbus.data.samplers import PassPosition, SeededSampler, TrainShard, shard_loader
from hookbus.testing import fingerprint


class TestSeededSampler:
    @staticmethod
    def steps(source: Any, *, batched: bool = True, epoch: int = 0, skip: int = 0, seed: int = 5) -> list[Any]:
        plan = SeededSampler(source, batched=batched, keyed=False)
        plan.set_position(PassPosition(epoch, skip), seed)
        return list(plan)

    SOURCES: ClassVar[dict[str, Any]] = {
        "shuffled": lambda: BatchSampler(RandomSampler(range(10)), 3, drop_last=False),
        "torch generator": lambda: BatchSampler(RandomSampler(range(10), generator=torch.Generator()), 3, False),
        "weighted": lambda: BatchSampler(WeightedRandomSampler([1.0] * 10, 20, generator=torch.Generator()), 4, True),
        "Python generator": lambda: GeneratorSampler(random.Random(3)),
        "NumPy generator": lambda: GeneratorSampler(np.random.default_rng(3)),
        "legacy NumPy generator": lambda: GeneratorSampler(np.random.RandomState(3)),
    }

    @pytest.mark.parametrize("kind", SOURCES)
    def test_order_depends_on_the_seed_only(self, kind: str) -> None:
        source = self.SOURCES[kind]()
        first = self.steps(source)
        list(source), list(source)

        assert self.steps(source) == first
        assert self.steps(self.SOURCES[kind]()) == first
        assert self.steps(source, seed=6) != first

    @pytest.mark.parametrize("kind", SOURCES)
    def test_sampling_preserves_all_rng_states_and_generators(self, kind: str) -> None:
        source, twin = self.SOURCES[kind](), self.SOURCES[kind]()
        before = fingerprint(get_rng_state())
        self.steps(source)

        assert fingerprint(get_rng_state()) == before
        torch.manual_seed(1)
        order = list(source)
        torch.manual_seed(1)
        assert order == list(twin)

    @pytest.mark.parametrize("skip", [0, 1, 3, 4])
    def test_skipped_steps_are_counted_in_the_length_of_the_epoch(self, skip: int) -> None:
        source = self.SOURCES["shuffled"]()
        plan = SeededSampler(source, batched=True, keyed=False)

        assert plan.set_position(PassPosition(0, skip), 5) == 4
        assert len(plan) == 4 - skip
        assert list(plan) == self.steps(source)[skip:]

    def test_keys_contain_the_epoch(self) -> None:
        plan = SeededSampler(BatchSampler(SequentialSampler(range(3)), 2, False), batched=True, keyed=True)
        plan.set_position(PassPosition(7), 5)
        assert list(plan) == [[(7, 0), (7, 1)], [(7, 2)]]

        plan = SeededSampler(SequentialSampler(range(2)), batched=False, keyed=True)
        plan.set_position(PassPosition(7), 5)
        assert list(plan) == [(7, 0), (7, 1)]

    def test_list_of_indices_is_one_key_if_the_loader_does_not_batch(self) -> None:
        plan = SeededSampler(BatchSampler(SequentialSampler(range(3)), 2, False), batched=False, keyed=True)
        plan.set_position(PassPosition(0), 5)

        assert list(plan) == [(0, [0, 1]), (0, [2])]

    def test_sampler_may_reuse_one_list_for_all_batches(self) -> None:
        class ReusingSampler:
            def __len__(self) -> int:
                return 3

            def __iter__(self) -> Iterator[list[int]]:
                batch: list[int] = []
                for i in range(3):
                    batch[:] = [i, i + 10]
                    yield batch

        assert self.steps(ReusingSampler()) == [[0, 10], [1, 11], [2, 12]]

    @pytest.mark.parametrize("batch", [np.array([1, 2]), torch.tensor([1, 2]), (1, 2)])
    def test_batch_of_indices_may_be_any_sequence(self, batch: Any) -> None:
        steps = self.steps(OneBatchSampler(batch))

        assert [list(map(int, step)) for step in steps] == [[1, 2]]

    def test_infinite_sampler_is_truncated_to_its_length(self) -> None:
        class InfiniteSampler:
            def __len__(self) -> int:
                return 3

            def __iter__(self) -> Iterator[int]:
                while True:
                    yield int(torch.randint(10, ()))

        assert len(self.steps(InfiniteSampler(), batched=False)) == 3


class DrawingSampler(torch.utils.data.Sampler[int]):
    """Sampler that draws from all RNGs before each index."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.count):
            number = random.random() + float(np.random.rand()) + float(torch.rand(()))
            yield int(1000 * (number + float(torch.rand((), generator=self.generator))))


class TestParts:
    """An epoch is read in parts, between which the training uses the RNGs."""

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(samplers, "INDICES_PER_READ", 4)

    @staticmethod
    def make_sampler(source: Any, *, skip: int = 0, ordinal: int = 0, **options: Any) -> SeededSampler:
        sampler = SeededSampler(source, **{"batched": False, "keyed": False, **options})
        position = PassPosition(0, skip, ordinal=ordinal)
        sampler.set_position(position, position.derive_seed(5))
        return sampler

    def test_training_between_two_parts_does_not_change_the_order(self) -> None:
        expected = list(self.make_sampler(DrawingSampler(30)))
        source, steps = DrawingSampler(30), []
        for step in self.make_sampler(source):
            steps.append(step)
            torch.rand(2), random.random(), np.random.rand(), torch.rand(3, generator=source.generator)

        assert steps == expected

    def test_reading_a_part_preserves_all_rng_states(self) -> None:
        source = DrawingSampler(30)
        before = fingerprint([get_rng_state(), source.generator.get_state()])
        for _ in self.make_sampler(source):
            assert fingerprint([get_rng_state(), source.generator.get_state()]) == before

    def test_two_iterators_do_not_disturb_each_other(self) -> None:
        source = DrawingSampler(30)
        sampler, other = self.make_sampler(source), self.make_sampler(source, ordinal=1)
        pairs = list(zip(sampler, other, strict=True))

        assert [first for first, _ in pairs] == list(sampler)
        assert [second for _, second in pairs] == list(other)
        assert list(sampler) != list(other)

    @pytest.mark.parametrize("skip", [0, 1, 4, 17, 29, 30])
    def test_order_after_skipped_steps_is_that_of_the_whole_epoch(self, skip: int) -> None:
        assert (
            list(self.make_sampler(DrawingSampler(30), skip=skip)) == list(self.make_sampler(DrawingSampler(30)))[skip:]
        )

    @pytest.mark.parametrize("total", range(1, 14))
    @pytest.mark.parametrize("skip", [0, 1, 2, 5])
    def test_shards_after_skipped_steps_are_those_of_the_whole_epoch(self, skip: int, total: int) -> None:
        for source in (BatchSampler(RandomSampler(range(total)), 2, drop_last=False), DrawingSampler(total)):
            options = {"batched": isinstance(source, BatchSampler), "shard": TrainShard(1, 3)}
            whole = list(self.make_sampler(source, **options))
            sampler = self.make_sampler(source, skip=skip, **options)

            assert list(sampler) == whole[skip:]
            assert len(sampler) == len(whole[skip:])

    def test_sampler_is_read_as_far_as_required(self) -> None:
        class RecordingSampler(DrawingSampler):
            read = 0

            def __iter__(self) -> Iterator[int]:
                for index in super().__iter__():
                    self.read += 1
                    yield index

        source = RecordingSampler(1000)
        next(iter(self.make_sampler(source)))

        assert source.read == 4

    def test_later_pass_of_an_epoch_has_other_keys(self) -> None:
        first, later = (self.make_sampler([7], keyed=True, ordinal=ordinal) for ordinal in (0, 1))

        assert list(first) == [(0, 7)]
        assert list(later) != list(first)


class GeneratorSampler(torch.utils.data.Sampler[list[int]]):
    """Batch sampler with a generator in a nested sampler."""

    class Inner(torch.utils.data.Sampler[int]):
        def __init__(self, generator: Any) -> None:
            self.rng = generator

        def __iter__(self) -> Iterator[int]:
            order = list(range(10))
            self.rng.shuffle(order)
            yield from order

    def __init__(self, generator: Any) -> None:
        self.inner = self.Inner(generator)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.inner)
        yield order[:5]
        yield order[5:]


class OneBatchSampler:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        yield self.batch


def batch_sampler(samples: int, size: int, *, drop_last: bool = False) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(samples)), size, drop_last)


def make_train_shards(source: Any, world_size: int) -> list[list[Any]]:
    steps = list(source)
    return [list(TrainShard(rank, world_size).select(source, steps)) for rank in range(world_size)]


def test_single_process_reads_all_batches() -> None:
    source = batch_sampler(5, 2)

    assert make_train_shards(source, 1) == [[[0, 1], [2, 3], [4]]]
    assert TrainShard().length(source, 3) == 3


def test_batches_are_assigned_round_robin_and_the_last_round_sample_by_sample() -> None:
    assert make_train_shards(batch_sampler(14, 2), 2) == [
        [[0, 1], [4, 5], [8, 9], [12]],
        [[2, 3], [6, 7], [10, 11], [13]],
    ]


def test_complete_last_round_is_redistributed() -> None:
    assert make_train_shards(batch_sampler(7, 2), 2) == [[[0, 1], [4, 6]], [[2, 3], [5]]]


def test_samples_that_do_not_suffice_for_all_ranks_are_dropped() -> None:
    assert make_train_shards(batch_sampler(9, 2), 2) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


class TestCustomSampler:
    SOURCE = (["a", "b"], ["c"], ["d", "e"])

    def test_batches_are_not_split_and_an_incomplete_last_round_is_dropped(self) -> None:
        assert make_train_shards(self.SOURCE, 2) == [[["a", "b"]], [["c"]]]
        assert TrainShard(0, 2).length(self.SOURCE, 3) == 1

    def test_sampler_may_yield_single_indices(self) -> None:
        assert make_train_shards(range(5), 2) == [[0, 2], [1, 3]]


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_ranks_have_equal_lengths_and_no_sample_is_read_twice(
    samples: int, size: int, world_size: int, drop_last: bool
) -> None:
    source = batch_sampler(samples, size, drop_last=drop_last)
    shards = make_train_shards(source, world_size)
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
    shards = make_train_shards(batch_sampler(samples, size), world_size)

    for number, steps in enumerate(zip(*shards, strict=True)):
        assert sorted(index for step in steps for index in step) == large[number]


@pytest.mark.parametrize("rank", [0, 1])
def test_random_order_is_sharded_after_sampling(rank: int) -> None:
    source = BatchSampler(RandomSampler(range(8)), 2, drop_last=False)
    steps = [[5, 1], [0, 7], [2, 6], [3, 4]]

    assert list(TrainShard(rank, 2).select(source, steps)) == [[[5, 1], [2, 3]], [[0, 7], [6, 4]]][rank]


dataset_sizes = st.integers(0, 40)
world_sizes = st.integers(1, 6)


def make_loader(count: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(list(range(count)), **options)


def make_eval_shards(loader: Any, world_size: int, *, seed: int = 0) -> list[list[list[int]]]:
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
    @pytest.mark.slow
    @settings(deadline=None)
    @given(dataset_sizes, st.integers(1, 7), world_sizes, st.booleans())
    def test_each_batch_of_a_single_process_is_evaluated_once(
        self, count: int, batch_size: int, world_size: int, drop_last: bool
    ) -> None:
        loader = make_loader(count, batch_size=batch_size, drop_last=drop_last)
        shards = make_eval_shards(loader, world_size)
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
                make_eval_shards(make_loader(max(count, 1), shuffle=True), world_size, seed=seed)
            ) == Counter(range(max(count, 1)))

    def test_each_sample_is_evaluated_once_with_a_generator_in_the_sampler(self) -> None:
        sampler = RandomSampler(range(11), generator=torch.Generator().manual_seed(4))

        assert count_samples(
            make_eval_shards(make_loader(11, batch_sampler=BatchSampler(sampler, 2, False)), 3)
        ) == Counter(range(11))

    def test_loader_without_batching_is_sharded_by_sample(self) -> None:
        assert make_eval_shards(make_loader(5, batch_size=None), 2) == [[[0], [2], [4]], [[1], [3]]]

    def test_batches_are_read_by_workers(self) -> None:
        loader = make_loader(5, batch_size=2, num_workers=1, persistent_workers=True, prefetch_factor=3, timeout=30)

        assert make_eval_shards(loader, 2) == [[[0, 1], [4]], [[2, 3]]]


def test_rank_reads_only_its_samples() -> None:
    class RecordingDataset(list[int]):
        def __getitem__(self, index: Any) -> Any:
            read.append(index)
            return super().__getitem__(index)

    read: list[int] = []
    make_eval_shards(DataLoader(RecordingDataset(range(6)), batch_size=2), 1)
    assert read == [0, 1, 2, 3, 4, 5]

    read.clear()
    list(shard_loader(DataLoader(RecordingDataset(range(6)), batch_size=2), 1, 3, 0))
    assert read == [2, 3]


def test_collate_function_is_kept() -> None:
    loader = make_loader(4, batch_size=2, collate_fn=lambda samples: [10 * sample for sample in samples])

    assert make_eval_shards(loader, 2) == [[[0, 10]], [[20, 30]]]


@pytest.mark.parametrize("stream", [list(range(7)), DataLoader(Stream())])
def test_loader_that_cannot_be_reordered_is_not_sharded(stream: Any) -> None:
    assert shard_loader(stream, 0, 2, 0) is None


class TestComplete:
    """Loaders of predictions, which read each sample of a dataset once, in its order."""

    @staticmethod
    def read(loader: Any, world_size: int = 1) -> list[list[list[int]]]:
        shards = [shard_loader(loader, rank, world_size, 0, complete=True) for rank in range(world_size)]
        return [[torch.as_tensor(batch).flatten().tolist() for batch in shard or ()] for shard in shards]

    @settings(deadline=None)
    @given(dataset_sizes, st.integers(1, 7), world_sizes, st.booleans(), st.booleans())
    def test_samples_are_read_once_and_in_order(
        self, count: int, batch_size: int, world_size: int, shuffle: bool, drop_last: bool
    ) -> None:
        loader = make_loader(count, batch_size=batch_size, shuffle=shuffle and count > 0, drop_last=drop_last)
        batches = [list(range(start, min(start + batch_size, count))) for start in range(0, count, batch_size)]
        assert self.read(loader, world_size) == [batches[rank::world_size] for rank in range(world_size)]

    @pytest.mark.parametrize("batch_size", [2, None])
    def test_padding_of_a_distributed_sampler_is_removed(self, batch_size: int | None) -> None:
        sampler = DistributedSampler(range(5), 2, 0)
        loader = make_loader(5, batch_size=batch_size, sampler=sampler, drop_last=batch_size is not None)
        assert [index for batch in self.read(loader)[0] for index in batch] == [0, 1, 2, 3, 4]

    def test_other_samplers_are_kept(self) -> None:
        torch.manual_seed(0)
        repeated = RandomSampler(range(5), replacement=True, num_samples=4)
        assert sum(map(len, self.read(make_loader(5, sampler=repeated))[0])) == 4
        assert self.read(make_loader(5, batch_size=2, sampler=[3, 1])) == [[[3, 1]]]
        assert self.read(make_loader(5, batch_sampler=[[4], [2, 0]])) == [[[4], [2, 0]]]

    def test_batches_of_a_subclass_are_kept(self) -> None:
        class Grouped(BatchSampler):
            """A batch sampler that drops what is left over."""

        grouped = Grouped(SequentialSampler(range(5)), 2, drop_last=True)
        assert self.read(make_loader(5, batch_sampler=grouped)) == [[[0, 1], [2, 3]]]


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
