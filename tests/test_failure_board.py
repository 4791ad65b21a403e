"""What a rank that fails tells the others; the ranks share a store of this process."""

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


def test_the_others_end_with_what_the_first_one_said(boards: list[FailureBoard]) -> None:
    boards[1].announce(ValueError("planted\nand more"))
    boards[2].announce(ValueError("later"))
    found = boards[0].explained(LOST)

    assert isinstance(found, RankError)
    assert str(found) == "rank 0 ends because of another rank: rank 1 failed: ValueError: planted"
    assert found.__notes__ == ["torch: RuntimeError: gloo: connection closed by peer"]


def test_one_that_ends_because_of_another_says_nothing_of_its_own(boards: list[FailureBoard]) -> None:
    boards[1].announce(RankError("rank 1 ends because of another rank"))

    assert str(boards[0].explained(LOST)) == (
        "rank 0 ends because of another rank: another rank exited without reporting an error, or timed out"
    )


def test_after_a_failure_there_is_a_board_on_which_nothing_stands(boards: list[FailureBoard]) -> None:
    boards[1].announce(ValueError("planted"))
    boards = [board.cleared() for board in boards]
    assert "without reporting an error" in str(boards[0].explained(LOST))

    boards[2].announce(ValueError("later"))
    assert str(boards[0].explained(LOST)) == "rank 0 ends because of another rank: rank 2 failed: ValueError: later"


@pytest.mark.parametrize("error", [ValueError("gloo"), RuntimeError("out of memory"), KeyboardInterrupt()])
def test_an_error_of_ones_own_stays_what_it_is(boards: list[FailureBoard], error: BaseException) -> None:
    boards[1].announce(ValueError("planted"))

    assert boards[0].explained(error) is error


def test_without_a_store_nothing_is_known_of_the_others() -> None:
    board = FailureBoard(None, 4)
    board.announce(ValueError("planted"))

    assert str(board.explained(LOST)).startswith("rank 4 ends because of another rank: another rank exited")
