"""Samplers whose order depends on seed and position only, and that are read in parts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from hookbus.data.rng import get_rng_state
from hookbus.data.seeded_sampler import PassPosition, SeededSampler
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
