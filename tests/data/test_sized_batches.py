"""Number of indices of each batch of a DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from hookbus.data.sized_batches import SizedBatches
from hookbus.data.workers import iter_loader

BATCHES = [[0], [1, 2, 3], [4, 5]]


class Numbers(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            raise ValueError("broken")
        return torch.zeros(7) if isinstance(index, list) else torch.zeros(1)


def pack(samples: list[Any]) -> torch.Tensor:
    """Return the samples as one row, whose shape does not depend on their number."""
    return torch.zeros(1, 7)


def loader(**options: Any) -> DataLoader[Any]:
    options = {"batch_sampler": BATCHES, "collate_fn": pack} | options
    return DataLoader(TensorDataset(torch.arange(6.0)), **options)


def read_sizes(source: DataLoader[Any]) -> list[int | None]:
    batches = iter_loader(source)
    return [getattr(batches, "size", None) for _ in batches]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=str,
)
def test_size_is_the_number_of_indices_of_the_batch(options: dict[str, Any]) -> None:
    source = loader(**options)

    assert read_sizes(source) == [1, 3, 2]
    assert read_sizes(source) == [1, 3, 2]
    assert source.batch_sampler is BATCHES


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_abandoned_iterator_does_not_change_the_next_one(options: dict[str, Any]) -> None:
    source = loader(**options)
    next(iter_loader(source))

    assert read_sizes(source) == [1, 3, 2]


def test_two_iterators_of_one_loader_have_their_own_sizes() -> None:
    source = loader()
    first, second = iter_loader(source), iter_loader(source)
    assert isinstance(first, SizedBatches)
    assert isinstance(second, SizedBatches)
    next(first), next(first), next(second)

    assert (first.size, second.size) == (3, 1)


def test_batch_after_a_failed_one_has_its_own_size() -> None:
    batches = iter_loader(DataLoader(Numbers(), batch_sampler=BATCHES))
    next(batches)
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    next(batches)

    assert batches.size == 2  # type: ignore[attr-defined]


def test_sampler_that_yields_lists_of_indices_determines_the_size() -> None:
    batches = BatchSampler(SequentialSampler(range(2)), batch_size=2, drop_last=False)

    assert read_sizes(DataLoader(Numbers(), batch_size=None, sampler=batches)) == [2]
    assert read_sizes(DataLoader([torch.zeros(8, 3)], batch_size=None)) == [None]  # type: ignore[arg-type]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


class Halving(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([batch[:1] for batch in super().__iter__()])


@pytest.mark.parametrize(
    "source",
    [
        loader(num_workers=2, in_order=False),
        DataLoader(Endless(), batch_size=2),
        Halving(TensorDataset(torch.arange(2.0)), batch_size=2, collate_fn=pack),
    ],
    ids=["in_order=False", "iterable dataset", "own __iter__"],
)
def test_size_is_unknown_if_batches_are_not_those_of_the_sampler(source: DataLoader[Any]) -> None:
    assert set(read_sizes(source)) == {None}


def test_loader_read_without_sizes_does_not_accumulate_them() -> None:
    source = DataLoader(range(1000), batch_size=1, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    batches = iter_loader(source)
    for _ in batches._batches:  # type: ignore[attr-defined]
        pass

    assert len(batches._sizes) == 4  # type: ignore[attr-defined]
