"""Share the first error of a rank with the other ranks through the store of the process group."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hookbus.errors import RankError, format_error_first_line

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

FAILED = "hookbus/failed"
"""Prefix of the store key of the first error."""


class ErrorStore:
    """Errors of ranks in a store.

    Args:
        store: Store of the process group; None if the script has initialized the group itself.
        rank: Rank of this process.
        attempt: Number of runs of these processes that have failed.
    """

    def __init__(self, store: Store | None, rank: int, attempt: int = 0) -> None:
        self._store, self._rank, self._attempt = store, rank, attempt
        self._key = f"{FAILED}/{attempt}"

    def next_attempt(self) -> ErrorStore:
        """Return an empty store for the run after a failed one. Called on every rank."""
        return ErrorStore(self._store, self._rank, self._attempt + 1)

    def publish(self, error: BaseException) -> None:
        """Publish the error of this rank, unless another rank has published one.

        Args:
            error: Error of this rank; an error that was caused by another rank is not published.
        """
        if self._store is not None and not isinstance(error, RankError):
            with suppress(RuntimeError):  # the process of the store may have ended
                # Atomic: the first error wins, later ones are consequences.
                self._store.compare_set(self._key, "", f"rank {self._rank} failed: {format_error_first_line(error)}")

    def translate(self, error: BaseException) -> BaseException:
        """Return an error that names the failed rank if an error is torch's about a lost connection.

        Args:
            error: Raised exception; any other exception is returned unchanged.
        """
        if not _is_communication_error(error):
            return error
        reason = self._remote_error() or "another rank exited without reporting an error, or timed out"
        translated = RankError(f"rank {self._rank} ends because of another rank: {reason}")
        translated.add_note(f"torch: {format_error_first_line(error)}")
        return translated

    def _remote_error(self) -> str:
        """Return the published error; "" if there is none."""
        with suppress(RuntimeError):
            if self._store is not None and self._store.check([self._key]):
                return self._store.get(self._key).decode()
        return ""


def _is_communication_error(error: BaseException) -> bool:
    """Return whether an error is one of communication between ranks."""
    import torch.distributed as dist

    # The gloo backend raises a plain RuntimeError, as of torch 2.13, which only its text identifies.
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
