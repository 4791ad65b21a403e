"""Mapping of the devices of this process to the GPUs of the machine, by `CUDA_VISIBLE_DEVICES`.

Rules of the CUDA programming guide, "CUDA environment variables": entries are indices, or prefixes of `GPU-` or `MIG-`
UUIDs; an entry without a match hides all later entries.

Usable without hookbus.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UUID_PREFIXES = ("GPU-", "MIG-")
INDEX_PATTERN = re.compile(r"\s*([+-]?[0-9]+)")

Entry = int | str
"""Device of a process: index of a GPU of the machine, or a UUID as accepted by `select_gpus`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU of the machine, or a MIG instance.

    Attributes:
        uuid: `GPU-...`, or `MIG-...` for a MIG instance.
        handle: Handle of the driver.
        instances: MIG instances of the GPU.
    """

    uuid: str
    handle: Any
    instances: tuple[Gpu, ...] = ()


def parse_visible_devices(text: str | None) -> list[Entry] | None:
    """Parse `CUDA_VISIBLE_DEVICES`.

    The prefix of the text determines whether its entries are GPU UUIDs, MIG UUIDs or indices; an entry of another type
    ends the list. An index consists of the leading digits of its entry; a duplicate entry hides all devices.

    Args:
        text: Value of the variable; None if it is not set.

    Returns:
        Entries in order; None if all GPUs are visible.
    """
    if text is None:
        return None
    prefix = text[:4] if text.startswith(UUID_PREFIXES) else ""
    entries: list[Entry] = []
    for word in text.split(","):
        entry = word if prefix else _parse_index(word)
        if entry is None or not word.startswith(prefix):
            break
        if entry in entries:
            return []
        entries.append(entry)
    return entries


def get_process_devices(text: str | None, uuids: list[str] | None) -> Sequence[Entry] | None:
    """Return the devices of this process: torch's UUIDs if known, otherwise the entries of the variable.

    Args:
        text: Value of `CUDA_VISIBLE_DEVICES`; None if it is not set.
        uuids: UUIDs of torch's devices without the prefix `GPU-`; None before CUDA is initialized.
    """
    entries = parse_visible_devices(text)
    # For a MIG instance, torch may return the UUID of the entire GPU.
    return entries if not uuids or str(text).startswith("MIG-") else uuids


def select_gpus(entries: Sequence[Entry] | None, gpus: Sequence[Gpu | None]) -> dict[int, Gpu]:
    """Return the GPUs of a process by device index.

    A GPU with MIG instances is represented by its first instance, as in CUDA.

    Args:
        entries: Devices of the process: indices, prefixes of UUIDs, or full UUIDs without `GPU-`; None for all.
        gpus: GPUs of the machine in the order of the driver; None for an unavailable one.
    """
    chosen = {}
    for index, entry in enumerate(range(len(gpus)) if entries is None else entries):
        gpu = _get_by_index(entry, gpus) if isinstance(entry, int) else _find_by_uuid(entry, gpus)
        if gpu is not None:
            chosen[index] = gpu
        elif None not in gpus:  # with an unavailable GPU, an entry without a match may refer to that GPU
            break
    return chosen


def _parse_index(word: str) -> int | None:
    match = INDEX_PATTERN.match(word)
    index = -1 if match is None else int(match[1])
    return index if index >= 0 else None


def _get_by_index(index: int, gpus: Sequence[Gpu | None]) -> Gpu | None:
    gpu = gpus[index] if index < len(gpus) else None
    return gpu.instances[0] if gpu is not None and gpu.instances else gpu


def _find_by_uuid(prefix: str, gpus: Sequence[Gpu | None]) -> Gpu | None:
    """Return the GPU or MIG instance with a UUID prefix; None if the prefix is ambiguous or has no match."""
    available = [gpu for gpu in gpus if gpu is not None]
    matches = [gpu.instances[0] if gpu.instances else gpu for gpu in available if _matches_uuid(gpu, prefix)]
    matches += [instance for gpu in available for instance in gpu.instances if _matches_uuid(instance, prefix)]
    return matches[0] if len(matches) == 1 else None


def _matches_uuid(gpu: Gpu, prefix: str) -> bool:
    """Return whether a UUID starts with a prefix, or equals it without `GPU-` or `MIG-` as in torch."""
    return gpu.uuid.startswith(prefix) or gpu.uuid.partition("-")[2] == prefix
