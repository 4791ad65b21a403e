"""Properties of loaders, and copies of loaders with another sampler."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Sampler, Subset, TensorDataset

from hookbus.data.loaders import (
    clone_loader,
    clone_wrapper,
    get_base_loader,
    index_sampler,
    is_deterministic,
    is_rebuildable,
    iter_datasets,
    loader_length,
    set_epoch,
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


ARGUMENTS: dict[str, Any] = {
    "dataset": [10, 20, 30],
    "batch_size": 2,
    "shuffle": True,
    "sampler": [1, 2, 0],
    "batch_sampler": [[0], [1, 2]],
    "num_workers": 1,
    "collate_fn": tuple,
    "pin_memory": True,
    "drop_last": True,
    "timeout": 9,
    "worker_init_fn": print,
    "multiprocessing_context": "spawn",
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "pin_memory_device": "cuda",
    "in_order": False,
}
"""A value that is not the default, for each argument of DataLoader."""


class TestCopy:
    def test_every_argument_of_a_loader_has_a_value_in_this_test(self) -> None:
        assert set(ARGUMENTS) == set(inspect.signature(DataLoader).parameters)

    @pytest.mark.parametrize("name", sorted(set(ARGUMENTS) - {"shuffle", "sampler", "batch_sampler"}))
    def test_copy_keeps_every_argument(self, name: str) -> None:
        needs_workers = name in (
            "timeout",
            "multiprocessing_context",
            "prefetch_factor",
            "persistent_workers",
            "in_order",
        )
        arguments = {"dataset": [1, 2], "batch_size": 1, "num_workers": int(needs_workers), name: ARGUMENTS[name]}
        loader: DataLoader[Any] = DataLoader(**arguments)
        copy = clone_loader(loader, [[1], [0]])

        assert getattr(copy, name) == getattr(loader, name)
        # The context is stored as an object.
        assert name == "multiprocessing_context" or getattr(copy, name) == ARGUMENTS[name]

    def test_copy_of_a_subclass_keeps_its_class_and_attributes(self) -> None:
        class NamedLoader(DataLoader[Any]):
            def __init__(self, name: str) -> None:
                super().__init__(IndexDataset(), batch_size=2)
                self.name = name

            def _get_iterator(self) -> Any:
                return ((self.name, batch.tolist()) for batch in super()._get_iterator())

        copy = clone_loader(NamedLoader("train"), [[5, 1]])

        assert list(copy) == [("train", [5, 1])]

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


class LookAheadLoader:
    """Wrapper that reads one batch ahead and marks the last one, as DataLoaderShard of Accelerate does."""

    def __init__(self, base: Any) -> None:
        self.base_dataloader, self.iteration = base, 0

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def __iter__(self) -> Iterator[tuple[int, Any, bool]]:
        batches = iter(self.base_dataloader)
        current = next(batches)
        for following in batches:
            yield self.iteration, current.tolist(), False
            current = following
        yield self.iteration, current.tolist(), True
        self.iteration += 1


class TestWrapper:
    def test_copy_of_a_wrapper_iterates_over_another_loader(self) -> None:
        loader = LookAheadLoader(DataLoader(IndexDataset(), batch_size=5))
        base = get_base_loader(loader)
        assert base is loader.base_dataloader
        copy = clone_wrapper(loader, clone_loader(base, [[5, 1], [2]]))

        assert list(copy) == [(0, [5, 1], False), (0, [2], True)]
        assert list(loader) == [(0, [0, 1, 2, 3, 4], False), (0, [5, 6, 7, 8, 9], True)]

    def test_epoch_of_a_wrapper_is_set(self) -> None:
        loader = LookAheadLoader(DataLoader(IndexDataset(), batch_size=5))
        set_epoch(loader, 3)

        assert [epoch for epoch, _, _ in loader] == [3, 3]

    def test_loader_without_a_wrapper_is_its_own_base(self) -> None:
        loader: DataLoader[Any] = DataLoader(IndexDataset())

        assert get_base_loader(loader) is loader
        assert clone_wrapper(loader, loader) is loader

    @pytest.mark.parametrize("base", [DataLoader(Stream()), [1, 2]], ids=["stream", "list"])
    def test_wrapper_of_another_iterable_has_no_base(self, base: Any) -> None:
        assert get_base_loader(LookAheadLoader(base)) is None

    def test_wrapper_that_combines_batches_has_no_base(self) -> None:
        class CombiningLoader(LookAheadLoader):
            def __len__(self) -> int:
                return 1

        assert get_base_loader(CombiningLoader(DataLoader(IndexDataset(), batch_size=5))) is None


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
