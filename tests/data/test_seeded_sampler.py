"""Samplers whose order depends on seed and position only, and that are read in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from hookbus.data import seeded_sampler
from hookbus.data.rng import get_rng_state
from hookbus.data.seeded_sampler import PassPosition, SeededSampler
from hookbus.data.train_shard import TrainShard
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
        monkeypatch.setattr(seeded_sampler, "INDICES_PER_READ", 4)

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
