from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = pytest.mark.slow

TALKING = """
    import torch
    from hookbus.ranks import join

    ranks = join()
    tensor, mine = torch.tensor([1 + RANK, -RANK]), []
    answer(
        {
            "who": [ranks.rank, ranks.world_size, ranks.is_main],
            "gather": ranks.gather("names", {"name": "ab"[RANK]}),
            "sum": ranks.reduce("sum", tensor).tolist(),
            "max": ranks.reduce("max", tensor, "max").tolist(),
            "min": ranks.reduce("min", tensor, op="min").tolist(),
            "kept": tensor.tolist(),
            "broadcast": ranks.broadcast("path", f"of rank {RANK}"),
            "barrier": ranks.barrier("end"),
            "same": join() is ranks,
            "own": [each is mine for each in ranks.gather("own", mine)],
        }
    )
"""


def test_every_rank_gets_the_same_answers(launch: Launch) -> None:
    done = launch(TALKING)

    for rank in (0, 1):
        assert done.answers[rank] == {
            "who": [rank, 2, rank == 0],
            "gather": [{"name": "a"}, {"name": "b"}],
            "sum": [3, -1],
            "max": [2, 0],
            "min": [1, -1],
            "kept": [1 + rank, -rank],
            "broadcast": "of rank 0",
            "barrier": None,
            "same": True,
            "own": [rank == 0, rank == 1],
        }


def test_a_group_that_the_loop_has_started_is_used(launch: Launch) -> None:
    started = """
        import torch.distributed as dist
        from hookbus.ranks import join

        dist.init_process_group("gloo")
        answer(join().gather("numbers", RANK))
        dist.destroy_process_group()
    """

    assert launch(started).answers == {0: [0, 1], 1: [0, 1]}


COMPARING = {"HOOKBUS_DEBUG_RANKS": "1"}


class TestWithTheDebugVariable:
    def test_the_same_calls_go_through(self, launch: Launch) -> None:
        done = launch(TALKING, environment=COMPARING)

        assert done.answers[1]["gather"] == [{"name": "a"}, {"name": "b"}]

    def test_the_place_of_shared_work_is_where_it_was_asked_for(self, launch: Launch) -> None:
        different = """
            from hookbus.errors import RankError
            from hookbus.ranks import join

            ranks = join()
            try:
                ranks.by_main("path" if RANK == 0 else "file", str)
            except RankError as error:
                answer(str(error).splitlines()[1:])
        """
        done = launch(different, environment=COMPARING)

        script = next(Path(done.logs).parent.glob("script.py"))
        told = [f"  rank 0: gather, 'path', at {script}:7", f"  rank 1: gather, 'file', at {script}:7"]
        assert done.answers == {0: told, 1: told}

    def test_a_mismatch_shows_both_sides(self, launch: Launch) -> None:
        different = """
            import torch
            from hookbus.errors import RankError
            from hookbus.ranks import join

            ranks = join()
            try:
                if RANK == 0:
                    ranks.barrier("end")
                else:
                    ranks.reduce("loss", torch.zeros(2, 3))
            except RankError as error:
                answer(str(error))
        """
        done = launch(different, environment=COMPARING)

        assert done.answers[0] == done.answers[1]
        script = next(Path(done.logs).parent.glob("script.py"))
        assert done.answers[0].splitlines() == [
            "Mismatched collective calls across ranks (this would deadlock):",
            f"  rank 0: barrier, 'end', at {script}:9",
            f"  rank 1: reduce by sum a tensor of shape (2, 3), torch.float32, 'loss', at {script}:11",
        ]


def test_the_others_are_told_who_has_failed(launch: Launch) -> None:
    failing = """
        from hookbus.errors import RankError
        from hookbus.ranks import join

        ranks = join()
        if RANK == 1:
            try:
                with ranks.together():
                    raise ValueError("no disk there")
            except ValueError:
                raise SystemExit(0)  # torchrun would end the other rank if this one failed
        else:
            try:
                with ranks.together():
                    ranks.barrier("end")
            except RankError as error:
                said = [str(error), error.__notes__[-1]]
            try:
                ranks.barrier("once more")
            except RankError as error:
                answer([*said, str(error)])
    """
    done = launch(failing)

    assert done.answers[0] == [
        "rank 0 ends because of another rank: rank 1 failed: ValueError: no disk there",
        "during the collective call 'end'",
        "rank 0: the collective call 'once more' is not possible, because the run has failed.",
    ]


CAUGHT = """
    from datetime import timedelta

    from torch.distributed import distributed_c10d

    from hookbus.errors import RankError
    from hookbus.ranks import join

    def fails(ranks, rank):
        try:
            with ranks.together():
                if RANK == rank:
                    raise ValueError(f"planted on {rank}")
                ranks.barrier("end")
        except (ValueError, RankError) as error:
            return str(error)
"""


def test_after_an_error_that_all_have_caught_they_meet_again_and_know_of_the_next_one_alone(launch: Launch) -> None:
    again = """
    said = fails(join(), 2)
    ranks = join()
    met = ranks.gather("number", RANK)
    answer([said, met, fails(ranks, 0), join() is not ranks])
    """
    done = launch(CAUGHT + again, ranks=3)

    assert done.answers == {
        0: [
            "rank 0 ends because of another rank: rank 2 failed: ValueError: planted on 2",
            [0, 1, 2],
            "planted on 0",
            True,
        ],
        1: [
            "rank 1 ends because of another rank: rank 2 failed: ValueError: planted on 2",
            [0, 1, 2],
            "rank 1 ends because of another rank: rank 0 failed: ValueError: planted on 0",
            True,
        ],
        2: [
            "planted on 2",
            [0, 1, 2],
            "rank 2 ends because of another rank: rank 0 failed: ValueError: planted on 0",
            True,
        ],
    }


def test_a_rank_that_goes_on_alone_after_an_error_lets_the_others_go_and_is_told(launch: Launch) -> None:
    alone = """
    said = [fails(join(), 1)]
    distributed_c10d.default_pg_timeout = timedelta(seconds=3)
    if RANK == 1:
        try:
            join()
        except RankError as error:
            said.append(str(error))
    answer(said)
    """
    done = launch(CAUGHT + alone)

    assert done.answers[0] == ["rank 0 ends because of another rank: rank 1 failed: ValueError: planted on 1"]
    caught, told = done.answers[1]
    assert caught == "planted on 1"
    assert told.startswith("rank 1: the previous run failed, and the other ranks did not continue: ")
    assert told.endswith(
        ". An error that a script catches has to be caught on every rank; otherwise let the process end."
    )


def test_what_the_main_rank_finds_is_there_on_all(launch: Launch) -> None:
    asking = """
        from hookbus.ranks import join

        ranks, found = join(), []
        found.append(ranks.by_main("path", lambda: f"found by rank {RANK}"))
        try:
            ranks.by_main("path", lambda: 1 // 0)
        except Exception as error:
            found += [type(error).__name__, str(error)]
        answer(found)
    """
    failure = "integer division or modulo by zero"

    assert launch(asking).answers == {
        0: ["found by rank 0", "ZeroDivisionError", failure],
        1: [
            "found by rank 0",
            "RankError",
            f"rank 0 failed in 'path': ZeroDivisionError: {failure}",
        ],
    }
