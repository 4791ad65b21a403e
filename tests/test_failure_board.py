"""Errors that a failing rank shares with other ranks, through a store in this process."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from hookbus._failure_board import FailureBoard
from hookbus.errors import RankError

LOST = RuntimeError("gloo: connection closed by peer\nmore")


@pytest.fixture
def boards() -> list[FailureBoard]:
    store = dist.HashStore()
    return [FailureBoard(store, rank) for rank in range(3)]


def test_other_ranks_end_with_the_first_published_error(boards: list[FailureBoard]) -> None:
    boards[1].announce(ValueError("planted\nand more"))
    boards[2].announce(ValueError("later"))
    translated = boards[0].explained(LOST)

    assert isinstance(translated, RankError)
    assert str(translated) == "rank 0 ends because of another rank: rank 1 failed: ValueError: planted"
    assert translated.__notes__ == ["torch: RuntimeError: gloo: connection closed by peer"]


def test_error_caused_by_another_rank_is_not_published(boards: list[FailureBoard]) -> None:
    boards[1].announce(RankError("rank 1 ends because of another rank"))

    assert str(boards[0].explained(LOST)) == (
        "rank 0 ends because of another rank: another rank exited without reporting an error, or timed out"
    )


def test_store_of_the_next_attempt_is_empty(boards: list[FailureBoard]) -> None:
    boards[1].announce(ValueError("planted"))
    boards = [board.cleared() for board in boards]
    assert "without reporting an error" in str(boards[0].explained(LOST))

    boards[2].announce(ValueError("later"))
    assert str(boards[0].explained(LOST)) == "rank 0 ends because of another rank: rank 2 failed: ValueError: later"


@pytest.mark.parametrize("error", [ValueError("gloo"), RuntimeError("out of memory"), KeyboardInterrupt()])
def test_error_of_this_rank_is_unchanged(boards: list[FailureBoard], error: BaseException) -> None:
    boards[1].announce(ValueError("planted"))

    assert boards[0].explained(error) is error


def test_errors_of_other_ranks_are_unknown_without_a_store() -> None:
    board = FailureBoard(None, 4)
    board.announce(ValueError("planted"))

    assert str(board.explained(LOST)).startswith("rank 4 ends because of another rank: another rank exited")
