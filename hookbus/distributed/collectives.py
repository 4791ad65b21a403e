"""Collective operations of a run, and their single-process implementation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal, TypeVar

from hookbus.distributed import process_group
from hookbus.errors import CheckpointError, RankError, RequestError, format_error_first_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

T = TypeVar("T")
Op = Literal["sum", "max", "min"]


class Collectives:
    """Base class and single-process implementation: every collective returns its input.

    Attributes:
        rank: Rank of this process, from 0.
        world_size: Number of processes.
        group: Process group of its own if the object was returned by `new_group`; otherwise None.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = process_group.rank(), 1
        self.group: ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this process has rank 0, which writes files and prints."""
        return self.rank == 0

    def all_gather(self, name: str, value: T) -> list[T]:
        """Gather the values of all ranks on every rank.

        Args:
            name: Name of the call for error messages; equal on every rank.
            value: Value of this rank; must be picklable.

        Returns:
            One value per rank, in the order of the ranks. The value of this rank is the original object, the others are
            copies.

        Raises:
            RankError: If another rank has failed, or executes another call.
            RequestError: If a hook that is active on rank 0 only made the call.
        """
        self._enter(name, "gather")
        return self._gather(name, value)

    def all_reduce(self, name: str, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Reduce the tensors of all ranks elementwise.

        Args:
            name: Name of the call for error messages; equal on every rank.
            tensor: Tensor of this rank, of the same shape and dtype on every rank. It is not modified.
            op: "sum", "max" or "min".

        Returns:
            A new tensor, equal on every rank.

        Raises:
            RankError: As in `all_gather`.
            RequestError: As in `all_gather`.
        """
        # Shape and dtype are part of the description: a mismatch between ranks would corrupt the result silently.
        self._enter(name, f"reduce by {op} a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}")
        return self._reduce(name, tensor.detach().clone(), op)

    def broadcast(self, name: str, value: T) -> T:
        """Return the value of rank 0 on every rank.

        Args:
            name: Name of the call for error messages; equal on every rank.
            value: Value of this rank; that of rank 0 must be picklable.

        Raises:
            RankError: As in `all_gather`.
            RequestError: As in `all_gather`.
        """
        self._enter(name, "broadcast")
        return self._broadcast(name, value)

    def barrier(self, name: str) -> None:
        """Block until every rank has called it.

        Args:
            name: Name of the call for error messages; equal on every rank.

        Raises:
            RankError: As in `all_gather`.
            RequestError: As in `all_gather`.
        """
        self._enter(name, "barrier")
        self._barrier(name)

    def call_on_all(self, name: str, work: Callable[[], T]) -> list[T]:
        """Call a function on every rank and gather the results. An error on one rank is raised on all ranks.

        Args:
            name: Name of the call for error messages; equal on every rank.
            work: Function whose result is picklable.

        Returns:
            The result of each rank, in the order of the ranks. That of this rank is the original object, the others are
            copies.

        Raises:
            Exception: If the function raised it on this rank.
            CheckpointError: If the function raised a CheckpointError on another rank.
            RankError: If the function raised any other exception on another rank.
        """
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error  # raised after the gather, which every rank must reach
        gathered = self.all_gather(name, (result, None if failure is None else self._portable_error(name, failure)))
        # The error of this rank first, because it has a traceback.
        failures = [error for error in (failure, *(other for _, other in gathered)) if error is not None]
        if failures:
            raise failures[0]
        return [value for value, _ in gathered]  # type: ignore[misc]

    def call_on_main(self, name: str, work: Callable[[], T]) -> T:
        """Call a function on rank 0 and broadcast its result or error.

        Args:
            name: Name of the call for error messages; equal on every rank.
            work: Function that is called on rank 0 and whose result is picklable.

        Returns:
            The result of rank 0. None in a process that is not rank 0 and has not joined a process group.

        Raises:
            Exception: If the function raised it, on rank 0.
            CheckpointError: As in `call_on_all`, on the other ranks.
            RankError: As in `call_on_all`, on the other ranks.
        """
        return self.call_on_all(name, lambda: work() if self.is_main else None)[0]  # type: ignore[return-value]

    def new_group(self) -> Collectives:
        """Return collectives with a process group of their own, for calls on another thread. A collective call.

        They remain usable after a failure of this object, until `close`.
        """
        return self

    def close(self) -> None:
        """Destroy the process group of an object returned by `new_group`. Not a collective call."""

    def drain(self) -> None:
        """Block until the threads of the process groups are idle, after which the loop may destroy the groups.

        Not a collective call.
        """

    @contextmanager
    def propagate_errors(self) -> Iterator[None]:
        """Context manager that propagates the failure of a rank, so that ranks blocked on it fail as well.

        Raises:
            RankError: If another rank has failed. It replaces torch's error about a lost connection, which does not
                name the rank.
        """
        yield

    # -- implementation ----------------------------------------------------------------------

    def _enter(self, name: str, operation: str) -> None:
        """Check a collective call before it is executed."""
        hook = _main_only_hook(sys._getframe(2))
        if hook is not None:
            raise RequestError(
                f"{hook} runs on rank 0 only and made the collective call {name!r} ({operation}), so the other ranks "
                'never join the call. Run the hook on every rank: ranks = "all".'
            )

    def _portable_error(self, name: str, error: Exception) -> CheckpointError | RankError:
        """Return an error that another rank can unpickle and raise."""
        # The original exception may not be picklable.
        error_type = CheckpointError if isinstance(error, CheckpointError) else RankError
        return error_type(f"rank {self.rank} failed in {name!r}: {format_error_first_line(error)}")

    def _gather(self, name: str, value: T) -> list[T]:
        return [value]

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        return tensor

    def _broadcast(self, name: str, value: T) -> T:
        return value

    def _barrier(self, name: str) -> None:
        pass


def _main_only_hook(frame: FrameType | None) -> str | None:
    """Return the hook that runs on rank 0 only and whose method is in the call stack; None if there is none."""
    # By the call stack and not by the current listener: the call may be made between two events.
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):  # checked first: reading the locals of a frame is slow
            owner = frame.f_locals.get("self")
            if getattr(type(owner), "ranks", None) == "main":
                return f"hook {getattr(owner, 'name', type(owner).__name__)!r}"
        frame = frame.f_back
    return None
