"""Properties of loaders, and copies of loaders with another sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset, TensorDataset

from hookbus.data.loaders import (
    clone_loader,
    index_sampler,
    is_deterministic,
    is_rebuildable,
    iter_datasets,
    loader_length,
)


class IndexDataset(Dataset[int]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class WithoutLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class TestCopy:
    def test_copy_has_another_sampler_and_the_same_arguments(self) -> None:
        loader = DataLoader(
            IndexDataset(), batch_size=2, num_workers=1, timeout=9, prefetch_factor=3, multiprocessing_context="spawn"
        )
        copy = clone_loader(loader, [[5, 1], [2]])

        assert (copy.dataset, copy.num_workers, copy.timeout, copy.prefetch_factor) == (loader.dataset, 1, 9, 3)
        assert copy.multiprocessing_context is loader.multiprocessing_context
        assert list(copy.batch_sampler) == [[5, 1], [2]]

    def test_copy_yields_batches_in_the_order_of_the_sampler(self) -> None:
        assert [batch.tolist() for batch in clone_loader(DataLoader(IndexDataset(), batch_size=4), [[5, 1], [2]])] == [
            [5, 1],
            [2],
        ]

    def test_copy_of_a_loader_without_batching_does_not_batch(self) -> None:
        assert list(clone_loader(DataLoader(IndexDataset(), batch_size=None), [7, 0])) == [7, 0]

    def test_copy_replaces_other_arguments(self) -> None:
        copy = clone_loader(
            DataLoader(IndexDataset(), batch_size=2), [[3, 4]], dataset=[0, 10, 20, 30, 40], collate_fn=tuple
        )

        assert list(copy) == [(30, 40)]


class TestLength:
    @pytest.mark.parametrize(
        ("loader", "length"),
        [
            ([1, 2], 2),
            (iter([1]), None),
            (DataLoader(IndexDataset(), batch_size=3), 4),
            (DataLoader(Stream(), batch_size=None), None),
            (DataLoader(IndexDataset(), batch_size=2, sampler=WithoutLength()), None),
            (None, None),
        ],
    )
    def test_length_is_that_of_the_loader_or_none(self, loader: Any, length: int | None) -> None:
        assert loader_length(loader) == length


def test_map_style_loader_of_known_length_can_be_copied() -> None:
    class CustomLoader(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter(())

    loaders: list[Any] = [
        DataLoader(IndexDataset(), batch_size=2),
        DataLoader(Stream(), batch_size=2),
        DataLoader(IndexDataset(), sampler=WithoutLength()),
        CustomLoader(IndexDataset()),
        [1, 2],
    ]
    assert list(map(is_rebuildable, loaders)) == [True, False, False, False, False]


def test_index_sampler_is_the_batch_sampler_if_the_loader_batches() -> None:
    batched, single = DataLoader(IndexDataset(), batch_size=2), DataLoader(IndexDataset(), batch_size=None)

    assert (index_sampler(batched), index_sampler(single)) == (batched.batch_sampler, single.sampler)


def test_only_built_in_datasets_are_known_to_be_deterministic() -> None:
    plain = TensorDataset(torch.zeros(2))

    assert is_deterministic(ConcatDataset([plain, Subset(plain, [0])]))
    assert not is_deterministic(ConcatDataset([plain, IndexDataset()]))
    assert not is_deterministic(Subset(IndexDataset(), [0]))


def test_nested_datasets_are_found() -> None:
    inner, other = IndexDataset(), IndexDataset()
    both = ConcatDataset([Subset(inner, [0]), other])

    assert iter_datasets(DataLoader(both, batch_size=1))[1:] == [both, *iter_datasets(both.datasets[0]), other]
    assert iter_datasets(both.datasets[0]) == [both.datasets[0], inner]
    assert iter_datasets(Subset([1, 2], [0]))[1:] == [[1, 2]]
