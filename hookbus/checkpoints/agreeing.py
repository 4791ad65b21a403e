"""Work that succeeds on every process or counts as failed on all of them, so that none waits for one that gave up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hookbus.errors import CheckpointError, in_one_line

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["everywhere", "on_main"]

T = TypeVar("T")


def everywhere(ranks: Ranks, what: str, work: Callable[[], T]) -> list[T]:
    """Do something with files on every process. Where it fails on one, it fails on all.

    Args:
        ranks: the processes.
        what: what it is, for messages; the same everywhere.
        work: does it, and returns plain values.

    Returns:
        What each process has found, by rank.

    Raises:
        Exception: what `work` has raised here.
        CheckpointError: it has failed on other processes only; the message is that of the first of them.
    """
    found, trouble = None, None
    try:
        found = work()
    except Exception as error:
        trouble = error
    outcomes = ranks.gather(what, (found, None if trouble is None else in_one_line(trouble)))
    if trouble is not None:
        raise trouble
    for rank, (_, said) in enumerate(outcomes):
        if said is not None:
            raise CheckpointError(f"rank {rank}: {what}: {said}")
    return [each for each, _ in outcomes]  # type: ignore[misc]


def on_main(ranks: Ranks, what: str, work: Callable[[], T]) -> T:
    """Do something with files on the main process alone. All get what it returns, and all fail where it does.

    Args:
        ranks, what, work: as for `everywhere`.

    Raises:
        Exception: what `work` has raised, on the main process.
        CheckpointError: it has failed there, on the others.
    """
    return everywhere(ranks, what, lambda: work() if ranks.is_main else None)[0]  # type: ignore[return-value]
