"""Collectives with one process; `tests/distributed/test_process_collectives.py` tests them with multiple processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.process_collectives import get_collectives
from hookbus.errors import CheckpointCorruptedError, CheckpointError, RankError, RequestError
from hookbus.testing import fake_training


class TestSingleProcess:
    def test_collectives_return_their_input_with_one_process(self) -> None:
        ranks = get_collectives()

        assert (ranks.rank, ranks.world_size, ranks.is_main) == (0, 1, True)
        assert ranks.all_gather("names", "a") == ["a"]
        assert ranks.broadcast("path", "here") == "here"
        assert ranks.barrier("end") is None

    def test_reduced_tensor_is_a_copy(self) -> None:
        tensor = torch.tensor([1.0, 2.0], requires_grad=True)

        for op in ("sum", "max", "min"):
            reduced = Collectives().all_reduce("loss", tensor, op)
            reduced += 1
            assert reduced.tolist() == [2.0, 3.0]
            assert not reduced.requires_grad
        assert tensor.tolist() == [1.0, 2.0]

    def test_single_process_calls_the_function_and_raises_its_error(self) -> None:
        assert Collectives().call_on_main("path", lambda: "here") == "here"
        assert Collectives().call_on_all("path", lambda: "here") == ["here"]
        with pytest.raises(OSError, match="No space"):
            Collectives().call_on_all("path", raise_os_error)

    def test_single_process_raises_the_original_error(self) -> None:
        error = RuntimeError("gloo: connection closed")

        with pytest.raises(RuntimeError) as caught, Collectives().propagate_errors():
            raise error
        assert caught.value is error


class FakeRanks(Collectives):
    """Collectives of this process with other ranks whose results are given."""

    def __init__(self, rank: int, *others: Any) -> None:
        super().__init__()
        self.rank, self.world_size = rank, 1 + len(others)
        self.sent: Any = None
        self._others = list(others)

    def _gather(self, name: str, value: Any) -> list[Any]:
        self.sent = value
        gathered = list(self._others)
        gathered.insert(self.rank, value)
        return gathered


def raise_os_error() -> None:
    raise OSError(28, "No space left on device")


class TestMultipleRanks:
    def test_every_rank_receives_the_results_of_all_ranks(self) -> None:
        assert FakeRanks(1, ("a", None), ("c", None)).call_on_all("files", lambda: "b") == ["a", "b", "c"]

    def test_function_of_rank_0_is_not_called_on_other_ranks(self) -> None:
        assert FakeRanks(1, ("found", None)).call_on_main("path", raise_os_error) == "found"

    def test_error_of_the_first_failed_rank_is_raised(self) -> None:
        first, second = CheckpointError("disk full"), RankError("no disk")

        with pytest.raises(CheckpointError) as caught:
            FakeRanks(0, (None, first), (None, second)).call_on_all("the tensors", lambda: 7)
        assert caught.value is first

    def test_failing_rank_sends_its_error_to_the_other_ranks(self) -> None:
        ranks = FakeRanks(1, ("a", None))

        with pytest.raises(OSError, match="No space"):
            ranks.call_on_all("files", raise_os_error)
        result, error = ranks.sent
        assert (result, type(error)) == (None, RankError)
        assert str(error) == "rank 1 failed in 'files': OSError: [Errno 28] No space left on device"

    def test_checkpoint_error_is_sent_as_a_checkpoint_error(self) -> None:
        def raise_corrupted() -> None:
            raise CheckpointCorruptedError("a.pth: corrupted")

        ranks = FakeRanks(0, (None, None))
        with pytest.raises(CheckpointCorruptedError):
            ranks.call_on_main("a.pth", raise_corrupted)
        error = ranks.sent[1]
        assert type(error) is CheckpointError
        assert str(error) == "rank 0 failed in 'a.pth': CheckpointCorruptedError: a.pth: corrupted"


class GatherIterations(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.gathered: list[object] = []

    def after_train_iter(self, run) -> None:
        self.gathered += run.ranks.all_gather("iteration", run.iter)


class MainRankGather(GatherIterations):
    ranks = "main"


def test_hook_calls_collectives_of_its_run() -> None:
    hook = GatherIterations()
    fake_training([hook], epochs=1, batches=2)

    assert hook.gathered == [0, 1]


def test_collective_call_of_a_main_rank_hook_raises() -> None:
    with pytest.raises(
        RequestError, match=r"hook 'main_rank_gather' runs on rank 0 only .* collective call 'iteration'"
    ):
        fake_training([MainRankGather()], epochs=1)


def test_collective_call_of_a_function_of_a_main_rank_hook_raises() -> None:
    class MainRankRecords(Hook):
        ranks = "main"

        def after_train_iter(self, run) -> None:
            run.request_record(run.metrics.window("mine"), self.deliver)

        def deliver(self, metrics, step) -> None:
            self.run.ranks.barrier("record")

    with pytest.raises(RequestError, match="hook 'main_rank_records' runs on rank 0 only"):
        fake_training([MainRankRecords()], epochs=1)


def test_loop_may_make_collective_calls_with_a_main_rank_hook() -> None:
    class MainRankHook(Hook):
        ranks = "main"

    with HookBus([MainRankHook()]).run() as run:
        assert run.ranks.all_gather("loop", 1) == [1]
