"""Requests with multiple records, of which a server rejects some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_FAILURES = 20
"""Maximum number of single records that fail with a `ServerError` while no record is accepted."""


class RejectedError(ValueError):
    """A request with an invalid record, which fails at every attempt."""


class ServerError(OSError):
    """An error response of the server, either temporary or caused by an invalid record."""


def send_accepted(send: Callable[[Sequence[T]], object], records: Sequence[T]) -> list[tuple[T, Exception]]:
    """Send records in one request. If the request fails, send its halves, down to single records.

    Args:
        send: Sends records in one request; raises `RejectedError` or `ServerError` if the request fails, and other
            exceptions if no request can succeed.
        records: Records to send.

    Returns:
        The rejected records with their errors; all others were sent.

    Raises:
        ServerError: If the server accepts none of the records.
    """
    rejected: list[tuple[T, Exception]] = []
    accepted, pending = 0, [records] if records else []
    while pending:
        batch = pending.pop()
        try:
            send(batch)
            accepted += len(batch)
        except (RejectedError, ServerError) as error:
            if len(batch) > 1:
                pending += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                continue
            rejected.append((batch[0], error))
            if not accepted and _count_failures(rejected) >= MAX_FAILURES:
                break
    if not accepted and _count_failures(rejected):
        # The server, and not a record, is likely the cause, so that a later attempt can succeed.
        raise next(error for _, error in rejected if isinstance(error, ServerError))
    return rejected


def _count_failures(rejected: Sequence[tuple[object, Exception]]) -> int:
    return sum(isinstance(error, ServerError) for _, error in rejected)
