"""Watching one amount of memory: too much of it, and steady growth.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Iterator

from hookbus_system_monitor.growth import Growth
from hookbus_system_monitor.readings import GB

__all__ = ["Watch"]


class Watch:
    """Tells of too much memory, again only after there was less, and once of steady growth.

    Args:
        what: which memory, for people.
        limit: GB; None for no limit.
    """

    def __init__(self, what: str, limit: float | None) -> None:
        self._what, self._limit = what, limit
        self._was_above = False
        self._growth = Growth()

    def see(self, iteration: int, size: int) -> Iterator[str]:
        """Take a size in, and give sentences about what is to be told.

        Args:
            iteration: greater than the last.
            size: bytes.
        """
        is_above = self._limit is not None and size > self._limit * GB
        if is_above and not self._was_above:
            yield f"{self._what} is {size / GB:.2f} GB, more than the warn_threshold of {self._limit:g} GB."
        self._was_above = is_above
        rate = self._growth.add(iteration, size)
        if rate is not None:
            yield (
                f"{self._what} grows steadily, by {1000 * rate / GB:.3g} GB per 1000 iterations, and is "
                f"{size / GB:.2f} GB now. Something keeps what it should let go: often a list of losses that were not "
                "detached, or a cache without a limit."
            )
