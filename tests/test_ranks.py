from __future__ import annotations

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.errors import RequestError
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

    def test_the_main_rank_works_for_itself(self) -> None:
        assert Ranks().by_main("path", lambda: "here") == "here"

    def test_an_error_stays_what_it_is(self) -> None:
        error = RuntimeError("gloo: connection closed")

        with pytest.raises(RuntimeError) as caught, Ranks().together():
            raise error
        assert caught.value is error


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
    with pytest.raises(RequestError, match=r"hook 'asking_alone' works on the main rank alone .* for 'iteration'"):
        fake_training([AskingAlone()], epochs=1)


def test_nor_must_a_function_that_it_calls_or_has_called_for_it() -> None:
    class Recording(Hook):
        ranks = "main"

        def after_train_iter(self, run) -> None:
            run.request_record(run.metrics.window("mine"), self.deliver)

        def deliver(self, metrics, step) -> None:
            self.run.ranks.barrier("record")

    with pytest.raises(RequestError, match="hook 'recording' works on the main rank alone"):
        fake_training([Recording()], epochs=1)


def test_the_loop_may_ask_beside_such_a_hook() -> None:
    class Quiet(Hook):
        ranks = "main"

    with HookBus([Quiet()]).run() as run:
        assert run.ranks.gather("loop", 1) == [1]
