"""Loaders are kept for later passes, so that persistent workers serve several epochs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hookbus import HookBus
from hookbus._run.loader_pool import SIZE, LoaderPool
from hookbus.data.samplers import TrainShard

LOGGER = logging.getLogger("hookbus")


def test_loader_is_kept_for_the_next_pass() -> None:
    pool, loader = LoaderPool(), [1, 2]
    first = pool.get(loader, 0, LOGGER)

    assert pool.get(loader, 0, LOGGER) is first
    assert pool.get([1, 2], 0, LOGGER) is not first
    assert (loader in pool, [1, 2] in pool, pool.used) == (True, False, True)


def test_number_of_kept_loaders_is_bounded() -> None:
    pool, loaders = LoaderPool(), [[number] for number in range(SIZE + 2)]
    for loader in loaders:
        pool.get(loader, 0, LOGGER)
        pool.get(loaders[0], 0, LOGGER)  # the most recently used ones are kept

    assert [loader in pool for loader in loaders] == [True, False, False] + [True] * (SIZE - 1)


def test_other_loaders_are_released() -> None:
    pool, first, second = LoaderPool(), [1], [2]
    kept = pool.get(first, 0, LOGGER)
    pool.get(second, 0, LOGGER)
    pool.keep(lambda resumable: resumable is kept)

    assert (first in pool, second in pool) == (True, False)


def test_loader_that_cannot_be_sharded_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    pool, loader = LoaderPool(), [1, 2]
    pool.shard = TrainShard(0, 2)
    with caplog.at_level(logging.INFO, "hookbus"):
        pool.get(loader, 0, LOGGER), pool.get(loader, 0, LOGGER)

    assert caplog.messages == [
        "The training loader cannot be sharded automatically, so each of the 2 processes reads it unchanged. Make the "
        "loader yield different samples on each rank."
    ]


def test_loader_of_an_earlier_epoch_is_released() -> None:
    kept: list[Any] = []
    with (bus := HookBus()).run(epochs=3) as run:
        for _ in run.epochs():
            loader = [run.epoch]
            for _ in run.batches(loader):
                bus.emit("after_train_iter", batch=[0])
            kept.append([source for source, _ in run.training_data.loaders._kept])

    assert kept == [[[0]], [[0], [1]], [[1], [2]]]
