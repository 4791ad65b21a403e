"""Rank of this process, and the process group of torch.distributed.

torchrun starts the processes and sets their environment variables; hookbus only initializes and destroys the process
group.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hookbus.errors import RankError

if TYPE_CHECKING:
    import torch
    from torch.distributed.distributed_c10d import Store

REQUIRED_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that are required to initialize a process group."""

RENDEZVOUS = "hookbus/meeting"
"""Store key under which rank 0 publishes the prefix of the current process group."""

REPORTED = "hookbus/said"
"""Prefix of the store keys of messages that rank 0 has reported."""

REPORT_TIMEOUT_SECONDS = 10.0
"""Time in seconds that other ranks wait for rank 0 to report a message."""

THREADS = Path("/proc/self/task")
"""Directory in which Linux lists the threads of this process."""

EXIT_TIMEOUT_SECONDS = 5.0
"""Time in seconds to wait for these threads at exit; a thread may be blocked on a process that has died."""


def rank() -> int:
    """Return the rank of this process, from 0."""
    dist = _get_initialized_dist()
    return dist.get_rank() if dist is not None else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes."""
    dist = _get_initialized_dist()
    return dist.get_world_size() if dist is not None else int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this process has rank 0, which writes files and prints."""
    return rank() == 0


def is_distributed() -> bool:
    """Return whether this process is one of multiple processes, with or without an initialized process group."""
    # `WORLD_SIZE` alone is not sufficient: without an address there is no process group to join.
    is_initialized = _get_initialized_dist() is not None
    return world_size() > 1 and (is_initialized or all(name in os.environ for name in REQUIRED_VARIABLES))


def local_device(device: torch.device) -> torch.device:
    """Return the device of this process: on a host with multiple processes, the index is `LOCAL_RANK`.

    Args:
        device: A device. A device with an index is returned unchanged.
    """
    import torch

    if device.type == "cpu" or device.index is not None or not is_distributed():
        return device
    return torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))


def init_process_group(device: torch.device | str | None = None) -> Store:
    """Initialize the process group of the processes that torchrun has started; it is destroyed at exit.

    Args:
        device: Device whose tensors are communicated in addition to CPU tensors; None for the CPU only.

    Returns:
        The store of the process group.

    Raises:
        RankError: If the other processes do not join.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend, device = "gloo", torch.device(device or "cpu")
    if device.type != "cpu":
        # Before the group is initialized: NCCL otherwise creates a context on device 0 in every process.
        torch.accelerator.set_device_index(device)
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    try:
        shared, group_rank, group_size = next(rendezvous("env://"))
        store = PrefixStore(_rendezvous_key(shared, group_rank, group_size), shared)
        dist.init_process_group(backend, store=store, rank=group_rank, world_size=group_size)
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"rank {rank()}: cannot join the process group with the {world_size() - 1} other processes: {error}. Start "
            "all processes with torchrun."
        ) from error
    atexit.register(_destroy_group)
    return store


def _rendezvous_key(store: Store, group_rank: int, group_size: int) -> str:
    """Return a store prefix that the running processes share and that no terminated process has used.

    torchrun keeps its store, with the addresses of terminated processes, when it restarts processes. Rank 0 therefore
    publishes a random prefix, each other rank adds a random ID under it, and waits until rank 0 has acknowledged the
    ID.
    """
    own = uuid.uuid4().hex
    if group_rank == 0:
        store.set(RENDEZVOUS, own)
        for other in range(1, group_size):
            store.set(f"{own}/{store.get(f'{own}/{other}').decode()}", "")
        return own
    prefix = ""
    # A prefix without acknowledgment may be that of a terminated rank 0: read it again until rank 0 replies.
    while not (prefix and store.check([f"{prefix}/{own}"])):
        time.sleep(0.02)
        prefix = store.get(RENDEZVOUS).decode()
        store.set(f"{prefix}/{group_rank}", own)
    return prefix


def reported_by_main(message: str) -> bool:
    """Return whether rank 0 reports the same message, so that this rank can omit it.

    Avoids one report per rank of an error that all ranks have, such as an invalid configuration. Rank 0 publishes a
    hash of its message in torchrun's store, and the other ranks wait for it for up to `REPORT_TIMEOUT_SECONDS`.
    Without that store, every rank reports its own messages.
    """
    if not is_distributed() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    from torch.distributed.rendezvous import rendezvous

    key = f"{REPORTED}/{hashlib.blake2b(message.encode(), digest_size=16).hexdigest()}"
    with suppress(RuntimeError):  # torchrun has ended
        store = next(rendezvous("env://"))[0]
        if is_main():
            store.set(key, "")
            return False
        end = time.monotonic() + REPORT_TIMEOUT_SECONDS
        while time.monotonic() < end:
            if store.check([key]):
                return True
            time.sleep(0.02)
    return False


def drain_threads() -> None:
    """Block until the worker threads of torch.distributed are idle: at the end of a run, and before finalization.

    A thread releases its Python objects shortly after its work is done and needs the interpreter to do so. In Python
    before 3.14, a thread that requests the interpreter during finalization aborts the process ("terminate called
    without an active exception"), and torchrun reports a failure.
    """
    end, before = time.monotonic() + EXIT_TIMEOUT_SECONDS, None
    while time.monotonic() < end:
        now = _get_thread_switches()
        if now is not None and now == before:
            return
        before = now
        time.sleep(0.01)  # releases the interpreter to these threads


def exit_process(code: int) -> NoReturn:
    """Run the exit handlers and end this process, one of multiple processes, without finalizing the interpreter.

    After a failed run, a worker thread may still be blocked on another process and wake up during finalization, see
    `drain_threads`.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # flushes no stream and runs no handler: done above


def destroy_group(group: Any = None) -> None:
    """Destroy a process group after its worker threads have released their objects.

    The destructor of a gloo group joins its threads while it holds the interpreter, and blocks forever if one of them
    requests the interpreter, see `drain_threads`.

    Args:
        group: Process group. Default: all groups.
    """
    import torch.distributed as dist

    drain_threads()
    dist.destroy_process_group(group)


def _get_thread_switches() -> dict[str, str] | None:
    """Return the number of context switches of each worker thread, by thread ID; None while a thread is awake.

    Two equal results in succession mean that all threads slept in between.
    """
    from hookbus._utils.torch_versions import is_gloo_thread  # imports torch, as the process group did

    switches = {}
    for thread in THREADS.glob("*"):
        with suppress(OSError):  # the thread has ended
            if is_gloo_thread(thread):
                status = dict(line.split(":\t", 1) for line in (thread / "status").read_text("utf-8").splitlines())
                switches[thread.name] = status["voluntary_ctxt_switches"]
                if not status["State"].startswith("S"):
                    return None
    return switches


def _destroy_group() -> None:
    """Destroy the process group if one is initialized."""
    dist = _get_initialized_dist()
    if dist is not None:
        destroy_group()


def _get_initialized_dist() -> Any:
    """Return `torch.distributed` if a process group is initialized, otherwise None."""
    # Not imported here, because the import is slow; without it, no process group can be initialized.
    module = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() and module.is_initialized() else None
