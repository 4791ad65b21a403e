"""Memory statistics of torch's caching allocator.

Usable without hookbus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

NO_STATISTICS = "is not a DeviceAllocator"
"""Part of the message of an allocator without statistics, such as that of MPS in older torch versions."""


class Allocation(NamedTuple):
    """Memory of torch on one device, in bytes.

    Attributes:
        current: Memory allocated to tensors.
        peak: Peak of the memory allocated to tensors.
        reserved: Memory reserved by the allocator.
        fragmentation: Percentage of the reserved memory that is free within partly used blocks. It can be neither
            released nor used for larger allocations.
    """

    current: int
    peak: int
    reserved: int
    fragmentation: float


def get_allocation() -> Allocation | None:
    """Return the allocation on the current device; None without a device or statistics.

    Raises:
        RuntimeError: If the device fails.
    """
    if not torch.accelerator.is_available():
        return None
    try:
        return parse_allocation(torch.accelerator.memory_stats())
    except RuntimeError as error:
        if NO_STATISTICS in str(error):
            return None
        raise


def parse_allocation(stats: Mapping[str, int]) -> Allocation | None:
    """Convert the result of `torch.accelerator.memory_stats()`.

    Args:
        stats: Statistics by name; empty before the device is used.

    Returns:
        The allocation; None if the statistics are empty.
    """
    if not stats:
        return None
    reserved = stats.get("reserved_bytes.all.current", 0)
    inactive = stats.get("inactive_split_bytes.all.current", 0)
    return Allocation(
        current=stats.get("allocated_bytes.all.current", 0),
        peak=stats.get("allocated_bytes.all.peak", 0),
        reserved=reserved,
        fragmentation=100 * inactive / reserved if reserved else 0.0,
    )
