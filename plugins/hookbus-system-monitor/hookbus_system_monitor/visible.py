"""Which GPUs of the machine are the devices of this process? `CUDA_VISIBLE_DEVICES`, as CUDA reads it.

The rules are those of the CUDA programming guide, "CUDA environment variables": entries are indices, or beginnings of
`GPU-` or `MIG-` UUIDs; an entry that names nothing hides everything behind it.

Usable without hookbus.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

__all__ = ["Entry", "Gpu", "entries_of", "pick", "visible_entries"]

UUIDS = ("GPU-", "MIG-")
NUMBER = re.compile(r"\s*([+-]?[0-9]+)")

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

    The beginning of the text decides whether its entries are UUIDs of GPUs, UUIDs of MIG instances, or numbers; one of
    another kind ends the list. Of a number the digits at the beginning count; a device that is named twice hides all.

    Args:
        text: the value of the variable; None where it is not set.
    """
    if text is None:
        return None
    read = _index if not text.startswith(UUIDS) else partial(_uuid, kind=text[:4])
    entries: list[Entry] = []
    for entry in map(read, text.split(",")):
        if entry is None:
            break
        if entry in entries:
            return []
        entries.append(entry)
    return entries


def entries_of(text: str | None, uuids: list[str] | None) -> Sequence[Entry] | None:
    """The devices of this process: what torch says, except for MIG instances, of which it may name the whole GPU.

    Args:
        text: the value of `CUDA_VISIBLE_DEVICES`; None where it is not set.
        uuids: of torch's devices, without `GPU-`; None where it uses none.
    """
    named = visible_entries(text)
    return named if not uuids or str(text).startswith("MIG-") else uuids


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


def _index(word: str) -> int | None:
    found = NUMBER.match(word)
    index = -1 if found is None else int(found[1])
    return index if index >= 0 else None


def _uuid(word: str, kind: str) -> str | None:
    return word if word.startswith(kind) else None


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
