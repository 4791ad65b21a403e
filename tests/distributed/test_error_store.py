"""Errors that a failing rank shares with other ranks, through a store in this process."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from hookbus.distributed.error_store import ErrorStore
from hookbus.errors import RankError

LOST = RuntimeError("gloo: connection closed by peer\nmore")


@pytest.fixture
def stores() -> list[ErrorStore]:
    store = dist.HashStore()
    return [ErrorStore(store, rank) for rank in range(3)]


def test_other_ranks_end_with_the_first_published_error(stores: list[ErrorStore]) -> None:
    stores[1].publish(ValueError("planted\nand more"))
    stores[2].publish(ValueError("later"))
    translated = stores[0].translate(LOST)

    assert isinstance(translated, RankError)
    assert str(translated) == "rank 0 ends because of another rank: rank 1 failed: ValueError: planted"
    assert translated.__notes__ == ["torch: RuntimeError: gloo: connection closed by peer"]


def test_error_caused_by_another_rank_is_not_published(stores: list[ErrorStore]) -> None:
    stores[1].publish(RankError("rank 1 ends because of another rank"))

    assert str(stores[0].translate(LOST)) == (
        "rank 0 ends because of another rank: another rank exited without reporting an error, or timed out"
    )


def test_store_of_the_next_attempt_is_empty(stores: list[ErrorStore]) -> None:
    stores[1].publish(ValueError("planted"))
    stores = [store.next_attempt() for store in stores]
    assert "without reporting an error" in str(stores[0].translate(LOST))

    stores[2].publish(ValueError("later"))
    assert str(stores[0].translate(LOST)) == "rank 0 ends because of another rank: rank 2 failed: ValueError: later"


@pytest.mark.parametrize("error", [ValueError("gloo"), RuntimeError("out of memory"), KeyboardInterrupt()])
def test_error_of_this_rank_is_unchanged(stores: list[ErrorStore], error: BaseException) -> None:
    stores[1].publish(ValueError("planted"))

    assert stores[0].translate(error) is error


def test_errors_of_other_ranks_are_unknown_without_a_store() -> None:
    store = ErrorStore(None, 4)
    store.publish(ValueError("planted"))

    assert str(store.translate(LOST)).startswith("rank 4 ends because of another rank: another rank exited")
