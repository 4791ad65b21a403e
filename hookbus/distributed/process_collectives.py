"""Collective communication between the processes of a run, through torch.distributed.

Only the bus and hooks that are active on all ranks call it, at points that every rank reaches: a collective call that
one rank omits blocks the other ranks. With `HOOKBUS_DEBUG_RANKS=1` the ranks first compare the next call and its
location in the source code; a mismatch raises an error that contains both.
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

from hookbus._utils.variables import DEBUG_RANKS_VARIABLE
from hookbus.distributed import collectives, process_group
from hookbus.distributed.collectives import Collectives, Op
from hookbus.errors import RankError, format_error_first_line

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

FAILED = "hookbus/failed"
"""Prefix of the store key of the first error of a rank, which it shares with the other ranks."""

DEBUG_TIMEOUT = timedelta(seconds=20)
"""Time to wait, with `HOOKBUS_DEBUG_RANKS`, for the other ranks to reach the same call."""


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
        """Publish the error of this rank, unless another rank has published one."""
        if self._store is not None and not isinstance(error, RankError):
            with suppress(RuntimeError):  # the process of the store may have ended
                # Atomic: the first error wins, later ones are consequences.
                self._store.compare_set(self._key, "", f"rank {self._rank} failed: {format_error_first_line(error)}")

    def translate(self, error: BaseException) -> BaseException:
        """Return an error that names the failed rank if an error is torch's about a lost connection."""
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


class ProcessCollectives(Collectives):
    """Collective communication in distributed training. Creating it is a collective call.

    Args:
        errors: Store of the errors of ranks.

    Attributes:
        world: Process group of all processes.
        is_disconnected: Whether a run has failed, after which no collective call is possible.
    """

    def __init__(self, errors: ErrorStore) -> None:
        import torch.distributed as dist

        self._dist: Any = dist  # importing this module must not import torch
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.world = dist.group.WORLD
        # Separate from the world group, whose backend may be NCCL: objects are exchanged on the CPU, and destroying
        # this group does not affect the group of the caller.
        self._group: ProcessGroup = dist.new_group(backend="gloo")
        self.group = None
        self._errors = errors
        self.is_disconnected = False
        if not self.is_main:
            logging.getLogger("hookbus").setLevel(logging.ERROR)  # rank 0 logs for all ranks
        self._debug = os.environ.get(DEBUG_RANKS_VARIABLE, "") not in ("", "0")

    def new_group(self) -> ProcessCollectives:
        """See `Collectives`."""
        ranks = ProcessCollectives(self._errors)
        ranks.group = ranks._group
        return ranks

    def close(self) -> None:
        """See `Collectives`."""
        if self.group is not None:
            process_group.destroy_group(self.group)
            self.group = None

    def drain(self) -> None:
        """See `Collectives`."""
        process_group.drain_threads()

    @contextmanager
    def propagate_errors(self) -> Iterator[None]:
        """See `Collectives`."""
        try:
            yield
        except BaseException as error:
            self.is_disconnected = True
            translated = self._errors.translate(error)
            # Published before the group is destroyed, which raises in the other ranks: they then find the cause.
            self._errors.publish(translated)
            self._destroy_group()
            if translated is not error:
                raise translated from None
            raise

    def reconnect(self) -> ProcessCollectives:
        """Return collective communication for the next run after a failed run. A collective call.

        Raises:
            RankError: If another rank does not continue.
        """
        try:
            return ProcessCollectives(self._errors.next_attempt())
        except RuntimeError as error:
            raise RankError(
                f"rank {self.rank}: the previous run failed, and the other ranks did not continue: "
                f"{format_error_first_line(error)}. Catch the error of a failed run on every rank, or on none."
            ) from error

    def _destroy_group(self) -> None:
        """Destroy the gloo group, so that ranks blocked on this rank fail instead of hanging."""
        with suppress(ValueError):  # the loop has destroyed all groups already
            process_group.destroy_group(self._group)
        del self._group  # gloo closes the connections with the last reference

    def _enter(self, name: str, operation: str) -> None:
        super()._enter(name, operation)
        if self.is_disconnected:
            raise RankError(
                f"rank {self.rank}: the collective call {name!r} is not possible, because the run has failed."
            )
        if self._debug:
            # Frame 2 is the caller of the public method that called `_enter`.
            self._check_same_call(f"{operation}, {name!r}, at {_get_location(sys._getframe(2))}")

    def _check_same_call(self, own: str) -> None:
        """Check that every rank is about to execute the same call."""
        with self._translate_errors(own):
            # Names the missing ranks after a short timeout; `all_gather_object` would block for that of the group.
            self._dist.monitored_barrier(self._group, DEBUG_TIMEOUT, wait_all_ranks=True)
        calls = self._gather(own, own)
        if len(set(calls)) > 1:
            shown = "\n".join(f"  rank {rank}: {call}" for rank, call in enumerate(calls))
            raise RankError(f"Mismatched collective calls across ranks (this would deadlock):\n{shown}")

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Translate errors of torch.distributed into the error of the rank that caused them."""
        try:
            yield
        except RuntimeError as error:
            translated = self._errors.translate(error)
            translated.add_note(f"during the collective call {name!r}")
            raise translated from None

    def _gather(self, name: str, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.world_size
        with self._translate_errors(name):
            self._dist.all_gather_object(gathered, value, group=self._group)
        gathered[self.rank] = value  # the original object, not a copy: attributes such as a lock are not pickled
        return gathered

    def _reduce(self, name: str, tensor: Tensor, op: Op) -> Tensor:
        reduce_op = {"sum": self._dist.ReduceOp.SUM, "max": self._dist.ReduceOp.MAX, "min": self._dist.ReduceOp.MIN}[op]
        # gloo reduces on the CPU; the world group has a backend for the device of the tensor.
        with self._translate_errors(name):
            self._dist.all_reduce(tensor, op=reduce_op, group=self._group if tensor.device.type == "cpu" else None)
        return tensor

    def _broadcast(self, name: str, value: T) -> T:
        values: list[Any] = [value if self.is_main else None]
        with self._translate_errors(name):
            self._dist.broadcast_object_list(values, src=0, group=self._group)
        return values[0]  # type: ignore[no-any-return]

    def _barrier(self, name: str) -> None:
        with self._translate_errors(name):
            self._dist.barrier(group=self._group)


_collectives: list[ProcessCollectives] = []
"""Collectives of this process, in a list of at most one item."""


def get_collectives(device: device | str | None = None) -> Collectives:
    """Return the collective communication of this process, and join the process group on the first call.

    A process group that the script has initialized is used as it is.

    Args:
        device: Device whose tensors are communicated in addition to CPU tensors; None for the CPU only.

    Returns:
        A `ProcessCollectives` in distributed training, a `Collectives` otherwise.

    Raises:
        RankError: If the other processes do not join.
    """
    if not process_group.is_distributed():
        return Collectives()
    import torch.distributed as dist

    store = None if dist.is_initialized() else process_group.init_process_group(device)
    if not _collectives:
        atexit.register(process_group.drain_threads)
    # A script may destroy the process group and initialize another one between two runs.
    if not _collectives or _collectives[0].world is not dist.group.WORLD:
        _collectives[:] = [ProcessCollectives(ErrorStore(store, process_group.rank()))]
    elif _collectives[0].is_disconnected:
        _collectives[:] = [_collectives[0].reconnect()]
    return _collectives[0]


# -- implementation ----------------------------------------------------------------------------------


def _get_location(frame: FrameType) -> str:
    """Return the location of the first frame outside the collectives."""
    while frame.f_code.co_filename in (__file__, collectives.__file__) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_communication_error(error: BaseException) -> bool:
    """Return whether an error is one of communication between ranks."""
    import torch.distributed as dist

    # The gloo backend raises a plain RuntimeError, as of torch 2.13, which only its text identifies.
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
