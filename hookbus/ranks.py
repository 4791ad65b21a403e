"""The one gateway through which the processes of a run talk to each other.

Only the bus and hooks of all ranks go through it, at moments that every rank reaches: a call that one rank leaves out
lets the others wait. With `HOOKBUS_DEBUG_RANKS=1` the ranks first tell each other what they are about to do, and where;
a difference is then an error that shows both sides.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from hookbus import _gateway, distributed
from hookbus._failure_board import FailureBoard
from hookbus._gateway import Op, Ranks
from hookbus.errors import RankError, first_line

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch.distributed import ProcessGroup

__all__ = ["DEBUG", "Op", "ProcessRanks", "Ranks", "join"]

T = TypeVar("T")

DEBUG = "HOOKBUS_DEBUG_RANKS"
"""The variable of the environment that has ranks compare what they are about to do."""

DEBUG_TIMEOUT = timedelta(seconds=20)
"""How long a rank waits, with `DEBUG`, for the others to come to the same place."""


class ProcessRanks(Ranks):
    """The processes of a run, where there are several.

    Made on every rank: none goes on from there before all have come.

    Args:
        board: where ranks leave word of their failures.

    Attributes:
        world: torch's group of all processes.
        parted: whether a run has failed, so that no other rank can be asked any more.
    """

    def __init__(self, board: FailureBoard) -> None:
        import torch.distributed as dist

        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.world = dist.group.WORLD
        self._group: ProcessGroup = dist.new_group(backend="gloo")
        self.group = None
        self._board = board
        self.parted = False
        if not self.is_main:
            logging.getLogger("hookbus").setLevel(logging.ERROR)  # the main rank tells what all of them do
        self._compares = os.environ.get(DEBUG, "") not in ("", "0")

    def apart(self) -> ProcessRanks:
        """See `Ranks`."""
        made = ProcessRanks(self._board)
        made.group = made._group
        return made

    def close(self) -> None:
        """See `Ranks`."""
        import torch.distributed as dist

        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `Ranks`."""
        try:
            yield
        except BaseException as error:
            self.parted = True
            found = self._board.explained(error)
            self._board.announce(found)
            self._hang_up()
            if found is not error:
                raise found from None
            raise

    def again(self) -> ProcessRanks:
        """The gateway for what comes after a run that has failed: returns once every rank has left that run.

        Raises:
            RankError: the others do not come.
        """
        try:
            return ProcessRanks(self._board.cleared())
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank} goes on after a run that has failed, and the others do not: {first_line(error)}. An "
                "error that a script catches has to be caught on every rank; otherwise let the process end."
            ) from error

    def _hang_up(self) -> None:
        """Let go of the others: those that wait for this rank, which may go on by itself, see that it has left."""
        import torch.distributed as dist

        with suppress(ValueError):  # the loop has ended all groups
            dist.destroy_process_group(self._group)
        del self._group  # it is closed when nobody knows it any more

    def _enter(self, name: str, what: str) -> None:
        super()._enter(name, what)
        if self.parted:
            raise RankError(f"rank {self.rank} cannot ask the others for {name!r}: the run has failed.")
        if self._compares:
            self._compare(f"{what}, {name!r}, at {_place(sys._getframe(2))}")

    def _compare(self, own: str) -> None:
        """See that every rank is about to do the same."""
        import torch.distributed as dist

        with self._talking(own):
            dist.monitored_barrier(self._group, DEBUG_TIMEOUT, wait_all_ranks=True)
        said = self._gather(own, own)
        if len(set(said)) > 1:
            shown = "\n".join(f"  rank {rank}: {each}" for rank, each in enumerate(said))
            raise RankError(f"The ranks are about to do different things, and would wait for each other:\n{shown}")

    @contextmanager
    def _talking(self, name: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            found = self._board.explained(error)
            found.add_note(f"while the ranks were at {name!r}")
            raise found from None

    def _gather(self, name: str, value: T) -> list[T]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.world_size
        with self._talking(name):
            dist.all_gather_object(found, value, group=self._group)
        found[self.rank] = value  # the very object: it may hold what does not pickle with it, such as a lock
        return found

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        import torch.distributed as dist

        how = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[op]
        with self._talking(name):
            dist.all_reduce(tensor, op=how, group=self._group if tensor.device.type == "cpu" else None)
        return tensor

    def _broadcast(self, name: str, value: T) -> T:
        import torch.distributed as dist

        held: list[Any] = [value if self.is_main else None]
        with self._talking(name):
            dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]  # type: ignore[no-any-return]

    def _barrier(self, name: str) -> None:
        import torch.distributed as dist

        with self._talking(name):
            dist.barrier(group=self._group)


_joined: list[ProcessRanks] = []
"""The gateway of this process, once there is one."""


def join(device: device | str | None = None) -> Ranks:
    """The processes of this run. Where torchrun has started several, this one meets the others, once.

    A group that the loop has started by itself is used as it is.

    Args:
        device: what tensors on it are sent through, besides the CPU's own; None for the CPU alone.

    Raises:
        RankError: the others do not come.
    """
    if not distributed.is_one_of_several():
        return Ranks()
    import torch.distributed as dist

    store = None if dist.is_initialized() else distributed.start_group(device)
    if not _joined:
        atexit.register(distributed.rest)
    if not _joined or _joined[0].world is not dist.group.WORLD:
        _joined[:] = [ProcessRanks(FailureBoard(store, distributed.rank()))]
    elif _joined[0].parted:
        _joined[:] = [_joined[0].again()]
    return _joined[0]


# -- inside ------------------------------------------------------------------------------------------


def _place(frame: FrameType) -> str:
    """Where the gateway was called."""
    while frame.f_code.co_filename in (__file__, _gateway.__file__) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
