"""Which GPUs of the machine are the devices of this process? `CUDA_VISIBLE_DEVICES`, as CUDA reads it.

The rules are those of the CUDA programming guide, "CUDA environment variables": entries are indices, or beginnings of
`GPU-` or `MIG-` UUIDs; an entry that names nothing hides everything behind it.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Entry", "Gpu", "pick", "visible_entries"]

Entry = int | str
"""One of the devices of a process: the index of a GPU of the machine, or a UUID as `pick` knows them."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of the machine, or a part of one.

    Attributes:
        uuid: `GPU-...`, or `MIG-...` for a part.
        handle: what the driver calls it.
        parts: its MIG instances.
    """

    uuid: str
    handle: Any
    parts: tuple[Gpu, ...] = ()


def visible_entries(text: str | None) -> list[Entry] | None:
    """The devices that `CUDA_VISIBLE_DEVICES` names, in order; None where every GPU is visible.

    Args:
        text: the value of the variable; None where it is not set.
    """
    if text is None:
        return None
    entries: list[Entry] = []
    for word in map(str.strip, text.split(",")):
        entry: Entry | None = int(word) if word.isdigit() else word if word.startswith(("GPU-", "MIG-")) else None
        if entry is None:
            break
        if entry in entries:
            return []
        entries.append(entry)
    return entries


def pick(entries: Sequence[Entry] | None, gpus: Sequence[Gpu | None]) -> dict[int, Gpu]:
    """The GPUs of a process by their index there.

    A GPU that is divided stands for the first of its parts, as it does for CUDA.

    Args:
        entries: the devices of the process: indices, beginnings of UUIDs, whole UUIDs without `GPU-`; None for all.
        gpus: the GPUs of the machine in the order of the driver; None for one that does not answer.
    """
    chosen = {}
    for index, entry in enumerate(range(len(gpus)) if entries is None else entries):
        found = _at(entry, gpus) if isinstance(entry, int) else _named(entry, gpus)
        if found is not None:
            chosen[index] = found
        elif None not in gpus:
            break
    return chosen


def _at(index: int, gpus: Sequence[Gpu | None]) -> Gpu | None:
    gpu = gpus[index] if index < len(gpus) else None
    return gpu.parts[0] if gpu is not None and gpu.parts else gpu


def _named(beginning: str, gpus: Sequence[Gpu | None]) -> Gpu | None:
    """The one GPU or part whose UUID begins so; a divided GPU stands for its first part."""
    whole = [gpu for gpu in gpus if gpu is not None]
    found = [gpu.parts[0] if gpu.parts else gpu for gpu in whole if _is_called(gpu, beginning)]
    found += [part for gpu in whole for part in gpu.parts if _is_called(part, beginning)]
    return found[0] if len(found) == 1 else None


def _is_called(gpu: Gpu, beginning: str) -> bool:
    """Whether a UUID begins so; torch gives whole ones, and leaves `GPU-` and `MIG-` out."""
    return gpu.uuid.startswith(beginning) or gpu.uuid.partition("-")[2] == beginning
