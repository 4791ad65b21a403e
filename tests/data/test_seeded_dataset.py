from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    Subset,
    default_collate,
)

from hookbus.data.rng import get_rng_state
from hookbus.data.seeded_dataset import SeededDataset, collate_seeded, init_dataset_worker
from hookbus.testing import fingerprint


class NoiseDataset:
    """Dataset whose samples are drawn from every global RNG."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> tuple[float, ...]:
        return (random.random(), float(np.random.rand()), float(torch.rand(())))


class RandomDataset:
    def __getitem__(self, index: Any) -> float:
        return random.random()


class TestSeededDataset:
    def test_sample_depends_on_seed_epoch_and_index(self) -> None:
        data = SeededDataset(NoiseDataset(), 3, for_collate=False)
        first = {(epoch, index): data[epoch, index] for epoch in range(3) for index in range(4)}

        assert len(set(first.values())) == 12
        assert all(data[key] == first[key] for key in reversed(first))
        assert SeededDataset(NoiseDataset(), 4, for_collate=False)[0, 0] != first[0, 0]

    def test_batch_equals_its_single_samples(self) -> None:
        data = SeededDataset(NoiseDataset(), 3, for_collate=False)
        keys = [(1, 4), (1, 2), (1, 9)]

        assert data.__getitems__(keys) == [data[key] for key in keys]

    def test_reading_preserves_the_rng_states(self) -> None:
        data = SeededDataset(NoiseDataset(), 3, for_collate=False)
        before = fingerprint(get_rng_state())
        data[0, 1], data.__getitems__([(0, 1), (0, 2)])

        assert fingerprint(get_rng_state()) == before

    @pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), np.uint8(3)])
    def test_equal_indices_of_any_type_yield_equal_samples(self, index: Any) -> None:
        data = SeededDataset(NoiseDataset(), 3, for_collate=False)

        assert data[0, index] == data[0, 3]

    @pytest.mark.slow
    def test_any_index_yields_the_same_sample_in_every_process(self) -> None:
        data = SeededDataset(RandomDataset(), 3, for_collate=False)
        indices = ["a", ("a", 3), (1, 2), [4, 5], None]
        samples = [data[0, index] for index in indices]

        assert len(set(samples)) == len(indices)
        script = f"""
from hookbus.data.seeded_dataset import SeededDataset
import random

class RandomDataset:
    def __getitem__(self, index):
        return random.random()

print([SeededDataset(RandomDataset(), 3, for_collate=False)[0, index] for index in {indices!r}])
"""
        environment = {**os.environ, "PYTHONHASHSEED": "1"}
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert result.stdout.strip() == repr(samples)

    def test_dataset_that_loads_batches_is_read_by_batch(self) -> None:
        class BatchDataset(NoiseDataset):
            def __getitems__(self, indices: list[int]) -> list[Any]:
                return [("batch", index, random.random()) for index in indices]

        data = SeededDataset(BatchDataset(), 3, for_collate=False)
        samples = data.__getitems__([(0, 1), (0, 2)])

        assert [sample[:2] for sample in samples] == [("batch", 1), ("batch", 2)]
        assert samples == data.__getitems__([(0, 1), (0, 2)])
        assert samples != data.__getitems__([(1, 1), (1, 2)])

    def test_subset_is_read_sample_by_sample(self) -> None:
        subset = SeededDataset(Subset(NoiseDataset(), [5, 6, 7]), 3, for_collate=False)

        assert subset.__getitems__([(0, 0), (0, 2)]) == [subset[0, 0], subset[0, 2]]
        assert len(subset) == 3


class TestCollate:
    @staticmethod
    def mix_samples(samples: list[Any]) -> Any:
        """Scale a sample by a random factor, similar to mixup."""
        factor = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return factor * default_collate(samples)[0]

    def test_collate_is_seeded_by_the_first_sample_of_the_batch(self) -> None:
        data, collate = SeededDataset(NoiseDataset(), 3, for_collate=True), partial(collate_seeded, self.mix_samples)
        before = fingerprint(get_rng_state())
        batches = [fingerprint(collate(data.__getitems__([(epoch, 1), (epoch, 2)]))) for epoch in (0, 1, 0)]

        assert batches[0] == batches[2] != batches[1]
        assert fingerprint(get_rng_state()) == before

    def test_collate_draws_other_numbers_than_the_samples(self) -> None:
        data = SeededDataset(NoiseDataset(), 3, for_collate=True)
        batch = data[0, 1]
        collate = partial(collate_seeded, lambda sample: random.random())

        assert collate(batch) != batch.samples[0]

    def test_collate_function_receives_the_samples_of_the_dataset(self) -> None:
        data = SeededDataset(["a", "b"], 3, for_collate=True)

        assert collate_seeded(lambda samples: samples, data.__getitems__([(0, 1), (0, 0)])) == ["b", "a"]
        assert collate_seeded(lambda sample: sample, data[0, 1]) == "b"


def test_worker_init_calls_the_function_of_the_user() -> None:
    called: list[int] = []
    init_dataset_worker(called.append, 3)

    assert called == [3]
