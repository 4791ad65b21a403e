"""What is told of a loader, and that one built again is like the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset, TensorDataset

from hookbus.training.loaders import can_be_rebuilt, datasets_in, is_deterministic, length_of, rebuilt, source_of


class Numbers(Dataset[int]):
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


class TestRebuilt:
    def test_has_another_order_and_the_same_arguments(self) -> None:
        loader = DataLoader(
            Numbers(), batch_size=2, num_workers=1, timeout=9, prefetch_factor=3, multiprocessing_context="spawn"
        )
        found = rebuilt(loader, [[5, 1], [2]])

        assert (found.dataset, found.num_workers, found.timeout, found.prefetch_factor) == (loader.dataset, 1, 9, 3)
        assert found.multiprocessing_context is loader.multiprocessing_context
        assert list(found.batch_sampler) == [[5, 1], [2]]

    def test_gives_batches_in_the_order_that_it_is_given(self) -> None:
        assert [batch.tolist() for batch in rebuilt(DataLoader(Numbers(), batch_size=4), [[5, 1], [2]])] == [
            [5, 1],
            [2],
        ]

    def test_of_one_that_makes_no_batches_makes_none(self) -> None:
        assert list(rebuilt(DataLoader(Numbers(), batch_size=None), [7, 0])) == [7, 0]

    def test_takes_what_is_to_be_different(self) -> None:
        found = rebuilt(DataLoader(Numbers(), batch_size=2), [[3, 4]], dataset=[0, 10, 20, 30, 40], collate_fn=tuple)

        assert list(found) == [(30, 40)]


class TestLength:
    @pytest.mark.parametrize(
        ("loader", "length"),
        [
            ([1, 2], 2),
            (iter([1]), None),
            (DataLoader(Numbers(), batch_size=3), 4),
            (DataLoader(Stream(), batch_size=None), None),
            (DataLoader(Numbers(), batch_size=2, sampler=WithoutLength()), None),
            (None, None),
        ],
    )
    def test_is_what_the_loader_knows(self, loader: Any, length: int | None) -> None:
        assert length_of(loader) == length


def test_a_map_style_loader_of_known_length_can_be_built_again() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter(())

    loaders: list[Any] = [
        DataLoader(Numbers(), batch_size=2),
        DataLoader(Stream(), batch_size=2),
        DataLoader(Numbers(), sampler=WithoutLength()),
        Own(Numbers()),
        [1, 2],
    ]
    assert list(map(can_be_rebuilt, loaders)) == [True, False, False, False, False]


def test_the_source_is_what_gives_the_indices() -> None:
    batched, single = DataLoader(Numbers(), batch_size=2), DataLoader(Numbers(), batch_size=None)

    assert (source_of(batched), source_of(single)) == (batched.batch_sampler, single.sampler)


def test_only_plain_data_draw_nothing_for_certain() -> None:
    plain = TensorDataset(torch.zeros(2))

    assert is_deterministic(ConcatDataset([plain, Subset(plain, [0])]))
    assert not is_deterministic(ConcatDataset([plain, Numbers()]))
    assert not is_deterministic(Subset(Numbers(), [0]))


def test_data_sets_are_found_inside_others() -> None:
    inner, other = Numbers(), Numbers()
    both = ConcatDataset([Subset(inner, [0]), other])

    assert datasets_in(DataLoader(both, batch_size=1))[1:] == [both, *datasets_in(both.datasets[0]), other]
    assert datasets_in(both.datasets[0]) == [both.datasets[0], inner]
    assert datasets_in(Subset([1, 2], [0]))[1:] == [[1, 2]]
