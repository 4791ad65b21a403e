"""Collective calls, and their errors, in real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist

from hookbus.distributed.process_collectives import ErrorStore
from hookbus.errors import RankError

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

COLLECTIVES = """
    import torch
    from hookbus.distributed.process_collectives import get_collectives

    ranks = get_collectives()
    tensor, local = torch.tensor([1 + RANK, -RANK]), []
    report(
        {
            "properties": [ranks.rank, ranks.world_size, ranks.is_main],
            "gather": ranks.all_gather("names", {"name": "ab"[RANK]}),
            "sum": ranks.all_reduce("sum", tensor).tolist(),
            "max": ranks.all_reduce("max", tensor, "max").tolist(),
            "min": ranks.all_reduce("min", tensor, op="min").tolist(),
            "input": tensor.tolist(),
            "broadcast": ranks.broadcast("path", f"from rank {RANK}"),
            "barrier": ranks.barrier("end"),
            "same instance": get_collectives() is ranks,
            "same object": [value is local for value in ranks.all_gather("object", local)],
        }
    )
"""


def test_collective_calls_return_the_same_values_on_every_rank(launch: Launch) -> None:
    completed = launch(COLLECTIVES)

    for rank in (0, 1):
        assert completed.reports[rank] == {
            "properties": [rank, 2, rank == 0],
            "gather": [{"name": "a"}, {"name": "b"}],
            "sum": [3, -1],
            "max": [2, 0],
            "min": [1, -1],
            "input": [1 + rank, -rank],
            "broadcast": "from rank 0",
            "barrier": None,
            "same instance": True,
            "same object": [rank == 0, rank == 1],
        }


def test_existing_process_group_of_the_script_is_used(launch: Launch) -> None:
    script = """
        import torch.distributed as dist
        from hookbus.distributed.process_collectives import get_collectives

        dist.init_process_group("gloo")
        report(get_collectives().all_gather("numbers", RANK))
        dist.destroy_process_group()
    """

    assert launch(script).reports == {0: [0, 1], 1: [0, 1]}


DEBUG_ENVIRONMENT = {"HOOKBUS_DEBUG_RANKS": "1"}


class TestDebugVariable:
    def test_matching_calls_succeed(self, launch: Launch) -> None:
        completed = launch(COLLECTIVES, environment=DEBUG_ENVIRONMENT)

        assert completed.reports[1]["gather"] == [{"name": "a"}, {"name": "b"}]

    def test_location_of_call_on_main_is_the_line_of_the_caller(self, launch: Launch) -> None:
        script = """
            from hookbus.errors import RankError
            from hookbus.distributed.process_collectives import get_collectives

            ranks = get_collectives()
            try:
                ranks.call_on_main("path" if RANK == 0 else "file", str)
            except RankError as error:
                report(str(error).splitlines()[1:])
        """
        completed = launch(script, environment=DEBUG_ENVIRONMENT)

        path = completed.log_dir.parent / "script.py"
        lines = [f"  rank 0: gather, 'path', at {path}:7", f"  rank 1: gather, 'file', at {path}:7"]
        assert completed.reports == {0: lines, 1: lines}

    def test_mismatch_message_lists_the_call_of_each_rank(self, launch: Launch) -> None:
        script = """
            import torch
            from hookbus.errors import RankError
            from hookbus.distributed.process_collectives import get_collectives

            ranks = get_collectives()
            try:
                if RANK == 0:
                    ranks.barrier("end")
                else:
                    ranks.all_reduce("loss", torch.zeros(2, 3))
            except RankError as error:
                report(str(error))
        """
        completed = launch(script, environment=DEBUG_ENVIRONMENT)

        assert completed.reports[0] == completed.reports[1]
        path = completed.log_dir.parent / "script.py"
        assert completed.reports[0].splitlines() == [
            "Mismatched collective calls across ranks (this would deadlock):",
            f"  rank 0: barrier, 'end', at {path}:9",
            f"  rank 1: reduce by sum a tensor of shape (2, 3), torch.float32, 'loss', at {path}:11",
        ]


def test_error_of_one_rank_is_reported_on_the_other_ranks(launch: Launch) -> None:
    script = """
        from hookbus.errors import RankError
        from hookbus.distributed.process_collectives import get_collectives

        ranks = get_collectives()
        if RANK == 1:
            try:
                with ranks.propagate_errors():
                    raise ValueError("no disk")
            except ValueError:
                raise SystemExit(0)  # torchrun terminates the other rank if this one fails
        else:
            try:
                with ranks.propagate_errors():
                    ranks.barrier("end")
            except RankError as error:
                messages = [str(error), error.__notes__[-1]]
            try:
                ranks.barrier("second call")
            except RankError as error:
                report([*messages, str(error)])
    """
    completed = launch(script)

    assert completed.reports[0] == [
        "rank 0 ends because of another rank: rank 1 failed: ValueError: no disk",
        "during the collective call 'end'",
        "rank 0: the collective call 'second call' is not possible, because the run has failed.",
    ]


FAILURE = """
    from datetime import timedelta

    from torch.distributed import distributed_c10d

    from hookbus.errors import RankError
    from hookbus.distributed.process_collectives import get_collectives

    def fail(ranks, rank):
        try:
            with ranks.propagate_errors():
                if RANK == rank:
                    raise ValueError(f"injected on {rank}")
                ranks.barrier("end")
        except (ValueError, RankError) as error:
            return str(error)
"""


def test_ranks_rejoin_after_a_caught_error_and_report_only_the_next_one(launch: Launch) -> None:
    script = """
    first = fail(get_collectives(), 2)
    ranks = get_collectives()
    gathered = ranks.all_gather("number", RANK)
    report([first, gathered, fail(ranks, 0), get_collectives() is not ranks])
    """
    completed = launch(FAILURE + script, ranks=3)

    assert completed.reports == {
        0: [
            "rank 0 ends because of another rank: rank 2 failed: ValueError: injected on 2",
            [0, 1, 2],
            "injected on 0",
            True,
        ],
        1: [
            "rank 1 ends because of another rank: rank 2 failed: ValueError: injected on 2",
            [0, 1, 2],
            "rank 1 ends because of another rank: rank 0 failed: ValueError: injected on 0",
            True,
        ],
        2: [
            "injected on 2",
            [0, 1, 2],
            "rank 2 ends because of another rank: rank 0 failed: ValueError: injected on 0",
            True,
        ],
    }


def test_rank_that_continues_alone_after_an_error_raises_a_rank_error(launch: Launch) -> None:
    script = """
    messages = [fail(get_collectives(), 1)]
    # rank 0 never rejoins: shorten the 30 minutes that rank 1 blocks
    distributed_c10d.default_pg_timeout = timedelta(seconds=3)
    if RANK == 1:
        try:
            get_collectives()
        except RankError as error:
            messages.append(str(error))
    report(messages)
    """
    completed = launch(FAILURE + script)

    assert completed.reports[0] == ["rank 0 ends because of another rank: rank 1 failed: ValueError: injected on 1"]
    first, second = completed.reports[1]
    assert first == "injected on 1"
    assert second.startswith("rank 1: the previous run failed, and the other ranks did not continue: ")
    assert second.endswith(". Catch the error of a failed run on every rank, or on none.")


def test_call_on_main_returns_the_result_of_rank_0_on_all_ranks(launch: Launch) -> None:
    script = """
        from hookbus.distributed.process_collectives import get_collectives

        ranks, results = get_collectives(), []
        results.append(ranks.call_on_main("path", lambda: f"returned by rank {RANK}"))
        try:
            ranks.call_on_main("path", lambda: 1 // 0)
        except Exception as error:
            results += [type(error).__name__, str(error)]
        report(results)
    """
    failure = "integer division or modulo by zero"

    assert launch(script).reports == {
        0: ["returned by rank 0", "ZeroDivisionError", failure],
        1: [
            "returned by rank 0",
            "RankError",
            f"rank 0 failed in 'path': ZeroDivisionError: {failure}",
        ],
    }


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
