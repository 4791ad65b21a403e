"""Number of iterations per epoch, from the lengths of the loaders of an epoch and from completed epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookbus._run.data_passes import DataPass, ForStatement


class EpochLengths:
    """Lengths of the loaders that a loop reads in an epoch.

    The loaders that one `for` statement reads, such as those of a `zip`, count as the shortest of them. The lengths of
    loaders that the loop reads one after another are added up.

    Attributes:
        last: Number of iterations of the last complete epoch; None if there is none.
        observed: Number of iterations of all complete epochs, if it differs from the lengths of the loaders; None
            otherwise.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.observed: int | None = None
        self._confirmed = False  # whether an epoch had as many iterations as its loaders have batches
        self._current: list[int | None] = []
        self._previous: list[int | None] = []
        self._groups: dict[ForStatement, list[DataPass]] = {}
        self._unread: int | None = None  # length of a loader that no `for` statement reads

    @property
    def total(self) -> int | None:
        """Number of iterations per epoch; None if it is unknown."""
        if self.observed is not None:
            return self.observed
        return self._declared

    @property
    def more_expected(self) -> bool:
        """Whether the previous epoch read further loaders after those that this epoch has read."""
        return len(self._current) < len(self._previous)

    @property
    def _declared(self) -> int | None:
        lengths = [*self._current, *self._previous[len(self._current) :]]
        known = [length for length in lengths if length is not None]
        if not lengths:
            return self._unread
        return sum(known) if len(known) == len(lengths) else None

    def begin_epoch(self) -> None:
        """Start an epoch."""
        self._previous, self._current, self._groups, self._unread = self._current, [], {}, None

    def add(self, data_pass: DataPass) -> None:
        """Add a pass when it starts or continues."""
        if data_pass.for_statement is None:
            self._unread = data_pass.length
        elif not data_pass.parents:
            self._add_to_group(data_pass, self._groups.setdefault(data_pass.for_statement, []))

    def _add_to_group(self, data_pass: DataPass, group: list[DataPass]) -> None:
        """Add a pass to the passes that a `for` statement reads side by side."""
        open_pass = next((other for other in group if not other.ended), None)
        if open_pass is not None and open_pass.group is not None:
            data_pass.group = open_pass.group
            self._shorten(data_pass.group, data_pass.length, wrapped=data_pass.wrapped)
        elif data_pass.group is None or data_pass.group >= len(self._current):
            data_pass.group = len(self._current)
            self._current.append(data_pass.length)
        group[:] = [*(other for other in group if not other.ended), data_pass]

    def _shorten(self, group: int, length: int | None, *, wrapped: bool) -> None:
        known = self._current[group]
        # A generator function of the loop may read its loader again, so that it is not the shortest one.
        if length is not None and not wrapped:
            self._current[group] = length if known is None else min(known, length)

    def observe(self, iterations: int, length: int | None) -> None:
        """Compare the number of iterations of a complete epoch with the expected number.

        Args:
            iterations: Number of iterations.
            length: Expected number if the loop reads its loader directly; None if it is unknown.
        """
        declared = self._declared if self._current or self._unread is not None else length
        self._confirmed = self._confirmed or declared in (None, iterations)
        is_first, is_equal = self.last is None, self.last == iterations
        self.last = iterations
        # Epochs of different lengths, or of the declared one, say nothing about the next epoch.
        self.observed = iterations if iterations and not self._confirmed and (is_first or is_equal) else None

    def state_dict(self) -> dict[str, Any]:
        """Return the lengths."""
        return {
            "last": self.last,
            "observed": self.observed,
            "confirmed": self._confirmed,
            "current": list(self._current),
            "previous": list(self._previous),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.last, self.observed, self._confirmed = state["last"], state["observed"], state["confirmed"]
        self._current, self._previous = list(state["current"]), list(state["previous"])
