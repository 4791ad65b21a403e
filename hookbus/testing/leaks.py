"""Detection of leaks: reseeded RNGs, child processes, and references to model tensors in the state of a hook."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, strided

from hookbus._utils.values import iter_leaves
from hookbus.testing.training import Training

MT_STATE_WORDS = 624
"""Number of 32-bit words in the state of a Mersenne Twister, which are regenerated together."""

MAX_REGENERATIONS = 10_000
"""Maximum number of state regenerations to search, more than a small training can consume."""

TIMEOUT_S = 5.0
"""Time that a process may take to exit after it was terminated, in seconds."""

PROC_DIRECTORY = Path("/proc")
"""Process information of the Linux kernel."""


def rng_states() -> dict[str, tuple[Any, ...]]:
    """Return the RNG states of Python and, if imported, NumPy by the name of the seeding function."""
    states: dict[str, tuple[Any, ...]] = {"random.seed": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, words, position, *_ = numpy.random.get_state()
        states["numpy.random.seed"] = (3, (*words.tolist(), position), None)
    return states


def reseeded_generators(before: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the seeding functions that were called since `before` was recorded.

    Args:
        before: Result of `rng_states`.
    """
    # Drawing numbers only advances an RNG; reseeding leads to a state that cannot be reached by drawing.
    return [name for name, state in rng_states().items() if name in before and not _is_reachable(state, before[name])]


def _is_reachable(state: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Return whether a Mersenne Twister reaches a state by drawing from an earlier one."""
    twister = random.Random()
    twister.setstate(before)
    for _ in range(MAX_REGENERATIONS):
        if twister.getstate()[1][:MT_STATE_WORDS] == state[1][:MT_STATE_WORDS]:
            return True
        twister.getrandbits(32 * MT_STATE_WORDS)
    return False


def child_processes() -> dict[int, str]:
    """Return the running child processes of this process: names by process ID.

    Linux lists all of them; on other systems only those of `multiprocessing` are known.
    """
    names = {process.pid: process.name for process in multiprocessing.active_children() if process.pid is not None}
    for stat_file in PROC_DIRECTORY.glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has exited in the meantime
            # The name of the process is in parentheses and may contain spaces.
            name, _, fields = stat_file.read_text().partition("(")[2].rpartition(")")
            state, parent = fields.split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                names.setdefault(int(stat_file.parent.name), name)
    return names


def leaked_processes(before: Mapping[int, str]) -> list[str]:
    """Return the names of processes that started after `before` and do not exit within `TIMEOUT_S` seconds.

    Args:
        before: Result of `child_processes`.
    """
    end = time.monotonic() + TIMEOUT_S
    while (leaked := [name for pid, name in child_processes().items() if pid not in before]) and time.monotonic() < end:
        time.sleep(0.02)
    return leaked


def find_shared_tensor(state: Any, training: Training) -> str | None:
    """Return the path of a tensor in a state that shares memory with the model or the optimizer, or None."""
    optimizer = training.run.optimizer
    optimizer_tensors = [] if optimizer is None else list(_iter_tensors(list(optimizer.state.values())))
    addresses = {
        _data_pointer(tensor)
        for tensor in (*training.model.state_dict(keep_vars=True).values(), *(t for _, t in optimizer_tensors))
    }
    return next((place for place, tensor in _iter_tensors(state) if _data_pointer(tensor) in addresses - {0}), None)


def _iter_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in nested containers with their paths, such as `['best'][0]`."""
    for path, leaf in iter_leaves(value):
        if isinstance(leaf, Tensor):
            yield "".join(f"[{key!r}]" for key in path), leaf


def _data_pointer(tensor: Tensor) -> int:
    """Return the data pointer of the storage of a tensor, 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is strided else 0
