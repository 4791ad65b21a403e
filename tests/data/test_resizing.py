"""Copies of data loaders with another batch size, and the loaders of which there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from hookbus.data.limited_loader import limit_loader
from hookbus.data.resizing import resize_loader
from hookbus.errors import ConfigError

DATA: Any = list(range(10))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([torch.zeros(1)])


class OwnSampler(BatchSampler):
    pass


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_batches_have_the_new_size(drop_last: bool, sizes: list[int]) -> None:
    loader: Any = DataLoader(DATA, batch_size=2, drop_last=drop_last)
    resized = resize_loader(loader, 4)
    assert [len(batch) for batch in resized] == sizes
    assert (len(resized), resized.batch_size) == (len(sizes), 4)
    assert (len(loader), loader.batch_size) == (5, 2)


def test_sampler_and_arguments_are_those_of_the_loader() -> None:
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(0))
    loader: Any = DataLoader(DATA, batch_size=3, sampler=sampler, collate_fn=tuple, timeout=0)
    resized = resize_loader(loader, 5)
    assert resized.sampler is sampler
    assert resized.collate_fn is tuple
    assert sorted(index for batch in resized for index in batch) == DATA


def test_loader_of_this_size_is_returned() -> None:
    loader: Any = DataLoader(DATA, batch_size=2)
    assert resize_loader(loader, 2) is loader


def test_batch_sampler_of_torch_is_replaced() -> None:
    loader: Any = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 2, True))
    assert [batch.tolist() for batch in resize_loader(loader, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_stream_with_a_batch_size_is_resized() -> None:
    assert [batch.tolist() for batch in resize_loader(DataLoader(Stream(), batch_size=2), 3)] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ([1, 2], "it is no DataLoader, got list"),
        (
            limit_loader(DataLoader(DATA, batch_size=2), 3),
            "its number of batches is limited by `limit_train_batches`, `overfit_batches` or `fast_dev_run`",
        ),
        (OwnLoader(DATA, batch_size=2), "OwnLoader reads its batches in its own way"),
        (DataLoader(Stream(), batch_size=None), r"its dataset \(Stream\) determines the batches, got batch_size=None"),
        (
            DataLoader(DATA, batch_sampler=OwnSampler(SequentialSampler(DATA), 2, False)),
            "its batch sampler determines the batches, got OwnSampler",
        ),
    ],
)
def test_other_loaders_are_refused_with_the_reason(loader: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}. Pass a DataLoader with `batch_size`"):
        resize_loader(loader, 4)
