from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
)

from hookbus.testing import fingerprint
from hookbus.training.rng import get_rng_state
from hookbus.training.seeding import Plan, SeededCollate, SeededDataset, WorkerStart


class Noise:
    """A data set whose samples are drawn from every global stream."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> tuple[float, ...]:
        return (random.random(), float(np.random.rand()), float(torch.rand(())))


class Draws:
    def __getitem__(self, index: Any) -> float:
        return random.random()


class TestPlan:
    @staticmethod
    def steps(source: Any, *, batched: bool = True, epoch: int = 0, skip: int = 0, seed: int = 5) -> list[Any]:
        plan = Plan(source, batched=batched, keyed=False)
        plan.draw(epoch, skip, seed)
        return list(plan)

    SOURCES: ClassVar[dict[str, Any]] = {
        "shuffled": lambda: BatchSampler(RandomSampler(range(10)), 3, drop_last=False),
        "with a generator": lambda: BatchSampler(RandomSampler(range(10), generator=torch.Generator()), 3, False),
        "weighted": lambda: BatchSampler(WeightedRandomSampler([1.0] * 10, 20, generator=torch.Generator()), 4, True),
        "of Python": lambda: OwnGenerator(random.Random(3)),
        "of NumPy": lambda: OwnGenerator(np.random.default_rng(3)),
        "of old NumPy": lambda: OwnGenerator(np.random.RandomState(3)),
    }

    @pytest.mark.parametrize("kind", SOURCES)
    def test_the_order_follows_from_the_seed_whatever_was_drawn_before(self, kind: str) -> None:
        source = self.SOURCES[kind]()
        first = self.steps(source)
        list(source), list(source)

        assert self.steps(source) == first
        assert self.steps(self.SOURCES[kind]()) == first
        assert self.steps(source, seed=6) != first

    @pytest.mark.parametrize("kind", SOURCES)
    def test_no_stream_and_no_generator_is_moved(self, kind: str) -> None:
        source, twin = self.SOURCES[kind](), self.SOURCES[kind]()
        before = fingerprint(get_rng_state())
        self.steps(source)

        assert fingerprint(get_rng_state()) == before
        torch.manual_seed(1)
        drawn = list(source)
        torch.manual_seed(1)
        assert drawn == list(twin)

    @pytest.mark.parametrize("skip", [0, 1, 3, 4])
    def test_what_is_skipped_is_left_out_and_counted(self, skip: int) -> None:
        source = self.SOURCES["shuffled"]()
        plan = Plan(source, batched=True, keyed=False)

        assert plan.draw(0, skip, 5) == 4
        assert len(plan) == 4 - skip
        assert list(plan) == self.steps(source)[skip:]

    def test_keys_carry_the_epoch(self) -> None:
        plan = Plan(BatchSampler(SequentialSampler(range(3)), 2, False), batched=True, keyed=True)
        plan.draw(7, 0, 5)
        assert list(plan) == [[(7, 0), (7, 1)], [(7, 2)]]

        plan = Plan(SequentialSampler(range(2)), batched=False, keyed=True)
        plan.draw(7, 0, 5)
        assert list(plan) == [(7, 0), (7, 1)]

    def test_a_step_of_several_indices_is_one_key_where_no_batches_are_made(self) -> None:
        plan = Plan(BatchSampler(SequentialSampler(range(3)), 2, False), batched=False, keyed=True)
        plan.draw(0, 0, 5)

        assert list(plan) == [(0, [0, 1]), (0, [2])]

    def test_a_sampler_that_uses_one_list_for_all_batches_is_understood(self) -> None:
        class Reusing:
            def __len__(self) -> int:
                return 3

            def __iter__(self) -> Iterator[list[int]]:
                batch: list[int] = []
                for i in range(3):
                    batch[:] = [i, i + 10]
                    yield batch

        assert self.steps(Reusing()) == [[0, 10], [1, 11], [2, 12]]

    @pytest.mark.parametrize("batch", [np.array([1, 2]), torch.tensor([1, 2]), (1, 2)])
    def test_batches_of_indices_may_be_any_sequence(self, batch: Any) -> None:
        steps = self.steps(OneBatch(batch))

        assert [list(map(int, step)) for step in steps] == [[1, 2]]

    def test_a_sampler_without_end_is_as_long_as_it_says(self) -> None:
        class Endless:
            def __len__(self) -> int:
                return 3

            def __iter__(self) -> Iterator[int]:
                while True:
                    yield int(torch.randint(10, ()))

        assert len(self.steps(Endless(), batched=False)) == 3


class OwnGenerator(torch.utils.data.Sampler[list[int]]):
    """A batch sampler with a generator of its own inside another sampler."""

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


class OneBatch:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        yield self.batch


class TestSeededDataset:
    def test_a_sample_follows_from_seed_epoch_and_index(self) -> None:
        data = SeededDataset(Noise(), 3, for_collate=False)
        first = {(epoch, index): data[epoch, index] for epoch in range(3) for index in range(4)}

        assert len(set(first.values())) == 12
        assert all(data[key] == first[key] for key in reversed(first))
        assert SeededDataset(Noise(), 4, for_collate=False)[0, 0] != first[0, 0]

    def test_a_batch_is_its_samples(self) -> None:
        data = SeededDataset(Noise(), 3, for_collate=False)
        keys = [(1, 4), (1, 2), (1, 9)]

        assert data.__getitems__(keys) == [data[key] for key in keys]

    def test_the_streams_of_the_training_are_untouched(self) -> None:
        data = SeededDataset(Noise(), 3, for_collate=False)
        before = fingerprint(get_rng_state())
        data[0, 1], data.__getitems__([(0, 1), (0, 2)])

        assert fingerprint(get_rng_state()) == before

    @pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), np.uint8(3)])
    def test_an_index_counts_by_its_value(self, index: Any) -> None:
        data = SeededDataset(Noise(), 3, for_collate=False)

        assert data[0, index] == data[0, 3]

    def test_any_index_gives_the_same_sample_in_every_process(self) -> None:
        data = SeededDataset(Draws(), 3, for_collate=False)
        indices = ["a", ("a", 3), (1, 2), [4, 5], None]
        samples = [data[0, index] for index in indices]

        assert len(set(samples)) == len(indices)
        script = f"""
from hookbus.training.seeding import SeededDataset
import random

class Draws:
    def __getitem__(self, index):
        return random.random()

print([SeededDataset(Draws(), 3, for_collate=False)[0, index] for index in {indices!r}])
"""
        environment = {**os.environ, "PYTHONHASHSEED": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == repr(samples)

    def test_a_data_set_that_reads_batches_is_asked_for_batches(self) -> None:
        class Reads(Noise):
            def __getitems__(self, indices: list[int]) -> list[Any]:
                return [("batch", index, random.random()) for index in indices]

        data = SeededDataset(Reads(), 3, for_collate=False)
        found = data.__getitems__([(0, 1), (0, 2)])

        assert [each[:2] for each in found] == [("batch", 1), ("batch", 2)]
        assert found == data.__getitems__([(0, 1), (0, 2)])
        assert found != data.__getitems__([(1, 1), (1, 2)])

    def test_a_part_of_a_data_set_is_read_sample_by_sample(self) -> None:
        part = SeededDataset(Subset(Noise(), [5, 6, 7]), 3, for_collate=False)

        assert part.__getitems__([(0, 0), (0, 2)]) == [part[0, 0], part[0, 2]]
        assert len(part) == 3


class TestSeededCollate:
    @staticmethod
    def mixed(samples: list[Any]) -> Any:
        """Mixes samples up, as data augmentation does."""
        share = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return share * default_collate(samples)[0]

    def test_what_it_draws_follows_from_the_first_sample_of_the_batch(self) -> None:
        data, collate = SeededDataset(Noise(), 3, for_collate=True), SeededCollate(self.mixed)
        before = fingerprint(get_rng_state())
        batches = [fingerprint(collate(data.__getitems__([(epoch, 1), (epoch, 2)]))) for epoch in (0, 1, 0)]

        assert batches[0] == batches[2] != batches[1]
        assert fingerprint(get_rng_state()) == before

    def test_it_draws_other_numbers_than_the_samples(self) -> None:
        data = SeededDataset(Noise(), 3, for_collate=True)
        drawn = data[0, 1]
        collate = SeededCollate(lambda sample: random.random())

        assert collate(drawn) != drawn.samples[0]

    def test_the_function_gets_the_samples_as_the_data_set_gave_them(self) -> None:
        data = SeededDataset(["a", "b"], 3, for_collate=True)

        assert SeededCollate(lambda samples: samples)(data.__getitems__([(0, 1), (0, 0)])) == ["b", "a"]
        assert SeededCollate(lambda sample: sample)(data[0, 1]) == "b"


def test_worker_start_calls_the_users_function() -> None:
    called: list[int] = []
    WorkerStart(called.append)(3)

    assert called == [3]
