"""What torch's caching allocator says of the memory of a device.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

__all__ = ["Allocation", "allocation", "allocation_of"]


class Allocation(NamedTuple):
    """The memory that torch holds on one device, in bytes.

    Attributes:
        current: what tensors use.
        peak: the most that they ever used.
        reserved: what torch has asked the device for.
        fragmentation: percent of what is reserved that lies free beside used pieces of the same block, where it can
            neither be given back nor hold anything larger.
    """

    current: int
    peak: int
    reserved: int
    fragmentation: float


def allocation() -> Allocation | None:
    """The allocation on the current device of this process; None where there is none, or none that counts."""
    if not torch.accelerator.is_available():
        return None
    try:
        return allocation_of(torch.accelerator.memory_stats())
    except RuntimeError:  # that of MPS counts nothing in older versions of torch
        return None


def allocation_of(stats: Mapping[str, int]) -> Allocation | None:
    """The same, from what `torch.accelerator.memory_stats` returns.

    Args:
        stats: counts by name; empty before the device is used.
    """
    if not stats:
        return None
    reserved = stats.get("reserved_bytes.all.current", 0)
    stuck = stats.get("inactive_split_bytes.all.current", 0)
    return Allocation(
        current=stats.get("allocated_bytes.all.current", 0),
        peak=stats.get("allocated_bytes.all.peak", 0),
        reserved=reserved,
        fragmentation=100 * stuck / reserved if reserved else 0.0,
    )
