"""Work that succeeds everywhere or nowhere, with other processes that say what they are told to."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus.checkpoints.agreeing import everywhere, on_main
from hookbus.errors import CheckpointError
from hookbus.ranks import Ranks


class With(Ranks):
    """This process and others, whose outcomes are known before."""

    def __init__(self, rank: int, *others: Any) -> None:
        super().__init__()
        self.rank, self.world_size = rank, 1 + len(others)
        self._others = list(others)

    def _gather(self, name: str, value: Any) -> list[Any]:
        found = list(self._others)
        found.insert(self.rank, value)
        return found


def fails() -> None:
    raise OSError(28, "No space left on device")


def test_one_process_gets_what_it_found_and_raises_what_it_raised() -> None:
    assert everywhere(Ranks(), "a file", lambda: 7) == [7]
    assert on_main(Ranks(), "a file", lambda: 7) == 7
    with pytest.raises(OSError, match="No space"):
        everywhere(Ranks(), "a file", fails)


def test_every_process_gets_what_all_have_found() -> None:
    assert everywhere(With(1, ("a", None), ("c", None)), "files", lambda: "b") == ["a", "b", "c"]


def test_a_failure_elsewhere_is_one_here_and_names_the_first() -> None:
    ranks = With(0, (None, "OSError: disk full"), (None, "OSError: no disk"))

    with pytest.raises(CheckpointError, match=r"^rank 1: the tensors: OSError: disk full$"):
        everywhere(ranks, "the tensors", lambda: 7)


def test_a_process_that_fails_tells_the_others_first() -> None:
    told: list[Any] = []

    class Telling(With):
        def _gather(self, name: str, value: Any) -> list[Any]:
            told.append(value)
            return super()._gather(name, value)

    with pytest.raises(OSError, match="No space"):
        everywhere(Telling(0, (1, None)), "files", fails)
    assert told == [(None, "OSError: [Errno 28] No space left on device")]


def test_only_the_main_process_works_and_all_get_what_it_found() -> None:
    assert on_main(With(1, ("found", None)), "a name", fails) == "found"
    with pytest.raises(CheckpointError, match="rank 0: a name: ValueError: none is free"):
        on_main(With(1, (None, "ValueError: none is free")), "a name", fails)
