"""The gateway to the processes of a run: what can be asked of it, and how it answers where there is one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal, TypeVar

from hookbus import distributed
from hookbus.errors import CheckpointError, RankError, RequestError, first_line

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

__all__ = ["Op", "Ranks"]

T = TypeVar("T")
Op = Literal["sum", "max", "min"]


class Ranks:
    """The processes of a run, where there is one: what is given comes back.

    Attributes:
        rank: the number of this process, from 0.
        world_size: the number of processes.
        group: torch's group that this gateway has to itself, where it was made by `apart`; None elsewhere.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = distributed.rank(), 1
        self.group: ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def gather(self, name: str, value: T) -> list[T]:
        """The values of every rank.

        Args:
            name: what it is called, the same on every rank.
            value: this rank's, which has to pickle.

        Returns:
            One value per rank, by rank; of this one the very object, of the others a copy.

        Raises:
            RankError: another rank has failed, or does something else.
            RequestError: a hook of the main rank alone has called this.
        """
        self._enter(name, "gather")
        return self._gather(name, value)

    def reduce(self, name: str, tensor: Tensor, op: Op = "sum") -> Tensor:
        """Element by element, the sum, greatest or least of the tensors of every rank.

        Args:
            name: what it is called, the same on every rank.
            tensor: this rank's; of the same shape and type everywhere. It stays as it is.
            op: "sum", "max" or "min".

        Returns:
            A new tensor, the same on every rank.

        Raises:
            RankError, RequestError: as `gather`.
        """
        self._enter(name, f"reduce by {op} a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}")
        return self._reduce(name, tensor.detach().clone(), op)

    def broadcast(self, name: str, value: T) -> T:
        """The value of rank 0.

        Args:
            name: what it is called, the same on every rank.
            value: this rank's; that of rank 0 has to pickle.

        Raises:
            RankError, RequestError: as `gather`.
        """
        self._enter(name, "broadcast")
        return self._broadcast(name, value)

    def barrier(self, name: str) -> None:
        """Return once every rank is here.

        Args:
            name: what it is called, the same on every rank.

        Raises:
            RankError, RequestError: as `gather`.
        """
        self._enter(name, "barrier")
        self._barrier(name)

    def everywhere(self, name: str, work: Callable[[], T]) -> list[T]:
        """Work that is done on every rank. Where it fails on one, it fails on all, so that none waits for it.

        Args:
            name: what it is, for messages; the same on every rank.
            work: what it returns has to pickle.

        Returns:
            What each rank has found, by rank; of this one the very object, of the others a copy.

        Raises:
            Exception: what the work has raised here.
            CheckpointError: it has raised one on another rank.
            RankError: it has raised something else there.
        """
        found, failure = None, None
        try:
            found = work()
        except Exception as error:
            failure = error
        told = self.gather(name, (found, None if failure is None else self._for_others(name, failure)))
        failures = [each for each in (failure, *(failed for _, failed in told)) if each is not None]
        if failures:
            raise failures[0]
        return [each for each, _ in told]  # type: ignore[misc]

    def by_main(self, name: str, work: Callable[[], T]) -> T:
        """What the main rank finds: it alone does the work.

        Args:
            name: what it is called, the same on every rank.
            work: done on rank 0; what it returns has to pickle.

        Returns:
            What it returned, on every rank. None in a process that is not the main one and knows no others.

        Raises:
            Exception: what the work has raised, on rank 0.
            CheckpointError, RankError: the same on the other ranks, see `everywhere`.
        """
        return self.everywhere(name, lambda: work() if self.is_main else None)[0]  # type: ignore[return-value]

    def apart(self) -> Ranks:
        """A gateway for work on another thread, whose calls do not meet those of this one. Called on every rank.

        It works on when this one has parted, and ends with `close`.
        """
        return self

    def close(self) -> None:
        """End a gateway that was made by `apart`. Nobody is asked."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """While this lasts, a rank that fails tells the others, and those that it lets wait fail with it.

        Raises:
            RankError: another rank has failed; what torch says of that, a lost connection, does not tell which.
        """
        yield

    # -- inside ------------------------------------------------------------------------------

    def _enter(self, name: str, what: str) -> None:
        hook = _of_main_rank_alone(sys._getframe(2))
        if hook is not None:
            raise RequestError(
                f"{hook} works on the main rank alone and asked all ranks for {name!r} ({what}), which the others "
                'would never answer. Let it work on every rank: ranks = "all".'
            )

    def _for_others(self, name: str, error: Exception) -> CheckpointError | RankError:
        kind = CheckpointError if isinstance(error, CheckpointError) else RankError
        return kind(f"rank {self.rank} has failed at {name!r}: {first_line(error)}")

    def _gather(self, name: str, value: T) -> list[T]:
        return [value]

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        return tensor

    def _broadcast(self, name: str, value: T) -> T:
        return value

    def _barrier(self, name: str) -> None:
        pass


def _of_main_rank_alone(frame: FrameType | None) -> str | None:
    """The hook of the main rank alone in whose method a frame, or one of its callers, is running."""
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):  # reading the locals of a frame is slow
            owner = frame.f_locals.get("self")
            if getattr(type(owner), "ranks", None) == "main":
                return f"hook {getattr(owner, 'name', type(owner).__name__)!r}"
        frame = frame.f_back
    return None
