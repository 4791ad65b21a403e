"""Which process is this, and how does it meet the others? hookbus starts no processes: torchrun does.

What torchrun says in the environment is read here, and the process group that it has prepared is started and ended.
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

__all__ = [
    "is_main",
    "is_one_of_several",
    "leave",
    "local_device",
    "rank",
    "rest",
    "said_by_main",
    "start_group",
    "world_size",
]

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What the environment has to say for processes to find each other."""

MEETING = "hookbus/meeting"
"""Where the first process says under which name the others find it."""

SAID = "hookbus/said"
"""Where the first process leaves word of what it says."""

WORD_LIMIT = 10.0
"""Seconds that the others wait for that word."""

THREADS = Path("/proc/self/task")
"""Where Linux tells what the threads of this process do."""

GLOO_THREAD = "pt_gloo_runloop"
"""What torch calls the threads that do the work of a group."""

PATIENCE = 5.0
"""Seconds that a process waits, at its end, for these threads: one may be waiting for a process that has died."""


def rank() -> int:
    """The number of this process, from 0."""
    group = _group()
    return group.get_rank() if group is not None else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes."""
    group = _group()
    return group.get_world_size() if group is not None else int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def is_one_of_several() -> bool:
    """Whether there are other processes to be met, or met already."""
    met = _group() is not None
    return world_size() > 1 and (met or all(name in os.environ for name in NEEDED))


def local_device(device: torch.device) -> torch.device:
    """The device of this process: of several on one host, each has the one of its own number.

    Args:
        device: a device; one with an index stays.
    """
    import torch

    if device.type == "cpu" or device.index is not None or not is_one_of_several():
        return device
    return torch.device(device.type, int(os.environ.get("LOCAL_RANK", "0")))


def start_group(device: torch.device | str | None = None) -> Store:
    """Meet the other processes that torchrun has started; the group ends with this process.

    Args:
        device: what tensors on it are sent through, besides the CPU's own; None for the CPU alone.

    Returns:
        Where the processes leave word for each other.

    Raises:
        RankError: the others do not come.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    backend, device = "gloo", torch.device(device or "cpu")
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    try:
        shared, number, size = next(rendezvous("env://"))
        store = PrefixStore(_meeting(shared, number, size), shared)
        dist.init_process_group(backend, store=store, rank=number, world_size=size)
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"rank {rank()} cannot meet the {world_size() - 1} other processes: {error}. Start all of them by torchrun."
        ) from error
    atexit.register(_end_group)
    return store


def _meeting(store: Store, number: int, size: int) -> str:
    """A name that the processes which are alive have in common, and those before them had not.

    torchrun keeps its store when it starts processes again, and in it the addresses of those that have died. So the
    first process makes up a name, the others put theirs beside it, and wait until the first has answered to that.
    """
    own = uuid.uuid4().hex
    if number == 0:
        store.set(MEETING, own)
        for other in range(1, size):
            store.set(f"{own}/{store.get(f'{own}/{other}').decode()}", "")
        return own
    place = ""
    while not (place and store.check([f"{place}/{own}"])):
        time.sleep(0.02)
        place = store.get(MEETING).decode()
        store.set(f"{place}/{number}", own)
    return place


def said_by_main(message: str) -> bool:
    """Whether the main process says the same, so that this one need not: a mistake of the user is one of all processes.

    The main one leaves word of what it says, and the others wait for that for a while. Where torchrun does not keep
    what processes leave for each other, every one speaks for itself.

    Args:
        message: what this process has to say.
    """
    if not is_one_of_several() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    from torch.distributed.rendezvous import rendezvous

    key = f"{SAID}/{hashlib.blake2b(message.encode(), digest_size=16).hexdigest()}"
    with suppress(RuntimeError):  # torchrun has ended
        store = next(rendezvous("env://"))[0]
        if is_main():
            store.set(key, "")
            return False
        end = time.monotonic() + WORD_LIMIT
        while time.monotonic() < end:
            if store.check([key]):
                return True
            time.sleep(0.02)
    return False


def rest() -> None:
    """Return once the threads through which processes talk have put away what they worked on.

    They do so a moment after the work is done, and need Python for it: one of them that comes when the interpreter is
    being taken down aborts the process ("terminate called without an active exception", Python before 3.14), and
    torchrun then says that the training has failed. So this is called at the end of a process, while Python is there.
    """
    end, before = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        now = _threads_asleep()
        if now is not None and now == before:
            return
        before = now
        time.sleep(0.01)  # whoever waits for the interpreter gets it now


def leave(code: int) -> NoReturn:
    """End this process, one of several: what is to happen at its end happens, and then it is gone.

    For a process whose exit code is known. Where a run has failed, a thread may still be waiting for another process,
    and wake while the interpreter is being taken down, see `rest`.

    Args:
        code: the exit code.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _threads_asleep() -> dict[str, str] | None:
    """How often each of the threads has slept, by its number; None while one is awake.

    Two answers that are alike say that all of them have slept in between.
    """
    found = {}
    for thread in THREADS.glob("*"):
        with suppress(OSError):  # it has ended
            if (thread / "comm").read_text().strip() == GLOO_THREAD:
                facts = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines())
                found[thread.name] = facts["voluntary_ctxt_switches"]
                if not facts["State"].startswith("S"):
                    return None
    return found


def _end_group() -> None:
    group = _group()
    if group is not None:
        group.destroy_process_group()


def _group() -> Any:
    """torch.distributed where its processes have met; None elsewhere."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None
