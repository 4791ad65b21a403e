"""Where a rank that fails leaves word for the others, so that they can say why they end with it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hookbus.errors import RankError, first_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["FailureBoard"]

FAILED = "hookbus/failed"
"""Where the first rank that fails says why."""


class FailureBoard:
    """What one rank says of its failure, and reads of the others'.

    Args:
        store: where ranks leave word for each other; None for none.
        rank: the number of this process.
        attempt: how many runs of these processes have failed before.
    """

    def __init__(self, store: Store | None, rank: int, attempt: int = 0) -> None:
        self._store, self._rank, self._attempt = store, rank, attempt
        self._place = f"{FAILED}/{attempt}"

    def cleared(self) -> FailureBoard:
        """The board for what comes after a failure, on which nothing stands yet. Asked for on every rank."""
        return FailureBoard(self._store, self._rank, self._attempt + 1)

    def announce(self, error: BaseException) -> None:
        """Tell the others why this rank ends. The first one that does so is the one that is believed."""
        if self._store is not None and not isinstance(error, RankError):
            with suppress(RuntimeError):  # whoever keeps the store may be gone
                self._store.compare_set(self._place, "", f"rank {self._rank} has failed: {first_line(error)}")

    def explained(self, error: BaseException) -> BaseException:
        """An error that says which rank has failed, in the place of torch's about a lost connection.

        Args:
            error: what was raised; where it is no such error of torch's, it comes back as it is.
        """
        if not _is_of_torch(error):
            return error
        word = self._word_of_others() or "another rank has gone without a word, or does not answer"
        found = RankError(f"rank {self._rank} ends with the others: {word}")
        found.add_note(f"torch says: {first_line(error)}")
        return found

    def _word_of_others(self) -> str:
        with suppress(RuntimeError):
            if self._store is not None and self._store.check([self._place]):
                return self._store.get(self._place).decode()
        return ""


def _is_of_torch(error: BaseException) -> bool:
    """Whether an error says that the ranks have lost each other."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
