"""The gateway to the ranks, where there is one process; of several tells `distributed/test_ranks.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.errors import CheckpointDamaged, CheckpointError, RankError, RequestError
from hookbus.ranks import Ranks, join
from hookbus.testing import fake_training


class TestInOneProcess:
    def test_what_is_given_comes_back(self) -> None:
        ranks = join()

        assert (ranks.rank, ranks.world_size, ranks.is_main) == (0, 1, True)
        assert ranks.gather("names", "a") == ["a"]
        assert ranks.broadcast("path", "here") == "here"
        assert ranks.barrier("end") is None

    def test_a_reduced_tensor_is_a_new_one(self) -> None:
        given = torch.tensor([1.0, 2.0], requires_grad=True)

        for op in ("sum", "max", "min"):
            found = Ranks().reduce("loss", given, op)
            found += 1
            assert found.tolist() == [2.0, 3.0]
            assert not found.requires_grad
        assert given.tolist() == [1.0, 2.0]

    def test_it_works_for_itself_and_raises_what_it_raised(self) -> None:
        assert Ranks().by_main("path", lambda: "here") == "here"
        assert Ranks().everywhere("path", lambda: "here") == ["here"]
        with pytest.raises(OSError, match="No space"):
            Ranks().everywhere("path", fails)

    def test_an_error_stays_what_it_is(self) -> None:
        error = RuntimeError("gloo: connection closed")

        with pytest.raises(RuntimeError) as caught, Ranks().together():
            raise error
        assert caught.value is error


class With(Ranks):
    """This process and others, whose outcomes are known before."""

    def __init__(self, rank: int, *others: Any) -> None:
        super().__init__()
        self.rank, self.world_size = rank, 1 + len(others)
        self.told: Any = None
        self._others = list(others)

    def _gather(self, name: str, value: Any) -> list[Any]:
        self.told = value
        found = list(self._others)
        found.insert(self.rank, value)
        return found


def fails() -> None:
    raise OSError(28, "No space left on device")


class TestWorkOnSeveralRanks:
    def test_every_rank_gets_what_all_have_found(self) -> None:
        assert With(1, ("a", None), ("c", None)).everywhere("files", lambda: "b") == ["a", "b", "c"]

    def test_the_main_rank_works_alone_and_all_get_what_it_found(self) -> None:
        assert With(1, ("found", None)).by_main("path", fails) == "found"

    def test_a_failure_elsewhere_is_one_here_and_the_first_one_counts(self) -> None:
        first, second = CheckpointError("disk full"), RankError("no disk")

        with pytest.raises(CheckpointError) as caught:
            With(0, (None, first), (None, second)).everywhere("the tensors", lambda: 7)
        assert caught.value is first

    def test_a_rank_that_fails_tells_the_others_first(self) -> None:
        ranks = With(1, ("a", None))

        with pytest.raises(OSError, match="No space"):
            ranks.everywhere("files", fails)
        found, told = ranks.told
        assert (found, type(told)) == (None, RankError)
        assert str(told) == "rank 1 failed in 'files': OSError: [Errno 28] No space left on device"

    def test_a_failed_checkpoint_is_one_for_the_others_as_well(self) -> None:
        def damaged() -> None:
            raise CheckpointDamaged("a.pth: damaged")

        ranks = With(0, (None, None))
        with pytest.raises(CheckpointDamaged):
            ranks.by_main("a.pth", damaged)
        told = ranks.told[1]
        assert type(told) is CheckpointError
        assert str(told) == "rank 0 failed in 'a.pth': CheckpointDamaged: a.pth: damaged"


class Asking(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[object] = []

    def after_train_iter(self, run) -> None:
        self.heard += run.ranks.gather("iteration", run.iter)


class AskingAlone(Asking):
    ranks = "main"


def test_a_hook_reaches_the_ranks_through_its_run() -> None:
    hook = Asking()
    fake_training([hook], epochs=1, batches=2)

    assert hook.heard == [0, 1]


def test_a_hook_of_the_main_rank_alone_must_not_ask_the_others() -> None:
    with pytest.raises(RequestError, match=r"hook 'asking_alone' runs on rank 0 only .* collective call 'iteration'"):
        fake_training([AskingAlone()], epochs=1)


def test_nor_must_a_function_that_it_calls_or_has_called_for_it() -> None:
    class Recording(Hook):
        ranks = "main"

        def after_train_iter(self, run) -> None:
            run.request_record(run.metrics.window("mine"), self.deliver)

        def deliver(self, metrics, step) -> None:
            self.run.ranks.barrier("record")

    with pytest.raises(RequestError, match="hook 'recording' runs on rank 0 only"):
        fake_training([Recording()], epochs=1)


def test_the_loop_may_ask_beside_such_a_hook() -> None:
    class Quiet(Hook):
        ranks = "main"

    with HookBus([Quiet()]).run() as run:
        assert run.ranks.gather("loop", 1) == [1]
