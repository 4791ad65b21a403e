"""What has a hook left behind: random streams seeded anew, processes, and memory of the model in its state?"""

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

from hookbus.testing.training import Training

__all__ = ["children", "outliving", "seeded", "shared_with_training", "streams"]

WORDS = 624
"""So many numbers of 32 bits a Mersenne twister makes at once; then it makes new ones out of these."""

LIMIT = 10_000
"""So often it is followed, which is more than a small training can draw."""

PATIENCE = 5.0
"""Seconds that a process has to end after it was told to."""

PROCESSES = Path("/proc")
"""Where Linux tells of processes."""


def streams() -> dict[str, tuple[Any, ...]]:
    """The state of the streams of Python and, where it is imported, NumPy, by the function that seeds them."""
    found: dict[str, tuple[Any, ...]] = {"random.seed": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, words, position, *_ = numpy.random.get_state()
        found["numpy.random.seed"] = (3, (*words.tolist(), position), None)
    return found


def seeded(before: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The functions that have seeded a stream since `streams` was asked: drawing from it leads elsewhere."""
    return [name for name, state in streams().items() if name in before and not _is_ahead(state, before[name])]


def _is_ahead(state: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Whether one comes to a state of a Mersenne twister by drawing from an earlier one."""
    twister = random.Random()
    twister.setstate(before)
    for _ in range(LIMIT):
        if twister.getstate()[1][:WORDS] == state[1][:WORDS]:
            return True
        twister.getrandbits(32 * WORDS)
    return False


def children() -> dict[int, str]:
    """The processes that this one has started and that run, by number, with what they are called.

    Linux tells of all of them; elsewhere those of `multiprocessing` are known.
    """
    found = {each.pid: each.name for each in multiprocessing.active_children() if each.pid is not None}
    for place in PROCESSES.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            name, _, facts = place.read_text().partition("(")[2].rpartition(")")
            state, parent = facts.split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.setdefault(int(place.parent.name), name)
    return found


def outliving(before: Mapping[int, str]) -> list[str]:
    """The processes that have begun since `children` was asked and do not end within a few seconds."""
    end = time.monotonic() + PATIENCE
    while (left := [name for number, name in children().items() if number not in before]) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def shared_with_training(state: Any, training: Training) -> str | None:
    """Where in the state of a hook there is a tensor of the model or of its optimizer; None where there is none."""
    optimizer = training.run.optimizer
    moments = [] if optimizer is None else list(_tensors(list(optimizer.state.values())))
    live = {
        _memory(tensor) for tensor in (*training.model.state_dict(keep_vars=True).values(), *(t for _, t in moments))
    }
    return next((place for place, tensor in _tensors(state) if _memory(tensor) in live - {0}), None)


def _tensors(value: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested containers, each with its place: `['best'][0]`."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, (Mapping, list, tuple)):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(each, f"{place}[{key!r}]")


def _memory(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 for one without."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is strided else 0
