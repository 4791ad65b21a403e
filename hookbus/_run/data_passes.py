"""Passes over the training data, each with its own position, and the number of iterations per epoch.

Each call of `run.batches` is a pass. A call in the body of a batch of another pass is nested in it. The nesting follows
from the statement that reads the batches of a pass and from the iteration in which the last batch was read.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus.data.iterated_loaders import ResumableLoader

FOR_ITER, CACHE = dis.opmap["FOR_ITER"], dis.opmap["CACHE"]

ForStatement = tuple[CodeType, int]
"""Code object and offset of the instruction of a `for` statement."""


class DataPass:
    """One pass over a training loader.

    Args:
        loader: Training loader.
        iterations: Number of completed iterations.

    Attributes:
        ordinal: Index of the pass within its epoch, or within the run if the loop has no epochs.
        resumable: Reads the loader; None until the first batch.
        position: Number of batches handed out, including those before the run resumed.
        length: Number of batches; None if it is unknown.
        epoch: Index of the epoch in which the pass was started.
        iteration: Iteration of the first batch of the pass.
        start: State of the loader at the start of the pass.
        loader_state: State of the loader to save or to restore, instead of the current one.
        count: Number of consecutive complete passes that this object stands for.
        ended: Whether the loop has left the pass.
        exhausted: Whether the loader has no further batch.
        former: Whether the pass was saved by version 0.1.0, see `hookbus._run.pass_list`.
        for_statement: The `for` statement that reads the batches; None if the loop calls `next`.
        wrapped: Whether the batches pass through a generator function.
        parents: Passes in whose body the pass was called, with their positions.
        group: Index of the loaders of the epoch that one `for` statement reads; None if it is unknown.
        replaced: Complete pass of the same iterator of the loop.
        invalid: Reason why no further batch can be handed out; "" if there is none.
    """

    def __init__(self, loader: Any, iterations: int) -> None:
        self.loader = loader
        self.resumable: ResumableLoader | None = None
        self.ordinal = self.position = self.epoch = 0
        self.iteration, self.count = iterations, 1
        self.length: int | None = None
        self.start: Mapping[str, Any] = {}
        self.loader_state: Mapping[str, Any] | None = None
        self.restored = self.ended = self.exhausted = self.wrapped = self.former = False
        self.for_statement: ForStatement | None = None
        self.parents: list[tuple[DataPass, int]] = []
        self.replaced: DataPass | None = None
        self.group: int | None = None
        self.invalid = ""
        self.called_at, self.read_at, self.ended_at = iterations, -1, -1  # in completed iterations
        self.first_position = self.position_before = 0  # at the call, and before the current iteration

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore a saved pass."""
        self.restored, self.ordinal, self.ended = True, saved["ordinal"], saved["ended"]
        self.position = self.first_position = self.position_before = saved["position"]
        self.length, self.epoch, self.iteration = saved["length"], saved["epoch"], saved["iteration"]
        self.group = saved["group"]
        self.start, self.loader_state, self.former = saved["start"], saved["loader"], saved.get("former", False)

    def count_batch(self, iterations: int) -> None:
        """Count a batch that is handed out after a number of completed iterations."""
        if iterations != self.read_at:
            self.read_at, self.position_before = iterations, self.position
        self.position += 1

    def end(self, iterations: int) -> None:
        """End the pass after a number of completed iterations."""
        self.ended, self.ended_at = True, iterations

    @property
    def started(self) -> bool:
        """Whether this process has read a batch."""
        return self.read_at >= 0

    @property
    def at_end(self) -> bool:
        """Whether the loader is known to have no further batch."""
        return self.ended or self.exhausted or (self.length is not None and self.position >= self.length)

    @property
    def is_obsolete(self) -> bool:
        """Whether the pass is complete, and the loop does not repeat its call when it resumes."""
        return self.ended and any(parent.ended or parent.position != position for parent, position in self.parents)

    def encloses_call(self, iterations: int) -> bool:
        """Whether a call at this moment is made in the body of the current batch of this pass."""
        return self.started and not self.ended and (self.for_statement is not None or self.read_at == iterations)

    def set_reader(self, reader: tuple[ForStatement | None, bool]) -> None:
        """Set the result of `find_for_statement`. Passes that one statement reads side by side are not nested."""
        statement, self.wrapped = reader
        self.for_statement = statement
        if statement is not None:
            self.parents = [item for item in self.parents if item[0].for_statement != statement]

    def get_loader_state(self) -> dict[str, Any]:
        """Return the state of the loader."""
        if self.loader_state is not None:
            return dict(self.loader_state)
        return self.resumable.state_dict() if self.resumable is not None else {}


def find_for_statement() -> tuple[ForStatement | None, bool]:
    """Return the `for` statement that is reading the calling generator, and whether another generator is in between.

    The statement may read the generator through built-in iterators, such as `zip` and `enumerate`, or through generator
    functions. It is None if the generator is read by a call of `next`.
    """
    frame, generators = sys._getframe(1), 0
    while frame.f_code.co_flags & inspect.CO_GENERATOR:
        if frame.f_back is None:
            return None, generators > 1
        frame, generators = frame.f_back, generators + 1
    code, offset = frame.f_code.co_code, frame.f_lasti
    # Python 3.12 stops within the inline cache of an instruction that it has specialized for a generator.
    while code[offset] == CACHE:
        offset -= 2
    return ((frame.f_code, offset) if code[offset] == FOR_ITER else None), generators > 1


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
