"""Providers of device metrics: the interface, and the memory statistics of torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch

from hookbus_system_monitor.readings import GB, Probe, Reader, Values


class Provider(Protocol):
    """Provider of device metrics, called by a single thread.

    Names begin with `gpu<index>/`, where the index is the torch device index.
    """

    def read(self) -> Values:
        """Return the current values, None for an unavailable one. A lost device must not raise."""

    def close(self) -> None:
        """Release all resources; a no-op if closed."""


class AcceleratorProvider:
    """Memory of torch on the accelerators of any vendor.

    Args:
        reader: Reader that reports each unavailable device once; by default in the log of this module.
    """

    def __init__(self, reader: Reader | None = None) -> None:
        self._reader = reader or Reader(logging.getLogger(__name__).warning)

    def read(self) -> Values:
        """Return the allocated and reserved memory of each device, in GB."""
        values: Values = {}
        for index in range(torch.accelerator.device_count()):
            names = (f"gpu{index}/allocated_gb", f"gpu{index}/reserved_gb")
            probe = Probe(f"memory of torch on device {index}", names, partial(_read_memory, index))
            values |= self._reader.read(probe)
        return values

    def close(self) -> None:
        """Do nothing."""


def _read_memory(index: int) -> Sequence[float]:
    device = torch.get_device_module()
    if not hasattr(device, "memory_allocated"):  # on MPS, with one device
        return device.current_allocated_memory() / GB, device.driver_allocated_memory() / GB
    return device.memory_allocated(index) / GB, device.memory_reserved(index) / GB


def get_cuda_uuids() -> list[str] | None:
    """Return the UUIDs of torch's CUDA devices by index, without the prefix; None before CUDA is initialized."""
    # The query would initialize CUDA, after which forked worker processes cannot use it.
    if not torch.cuda.is_initialized():
        return None
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


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
    device = torch.get_device_module()
    if not torch.accelerator.is_available() or not hasattr(device, "memory_stats"):  # such as on MPS
        return None
    return parse_allocation(device.memory_stats())


def parse_allocation(stats: Mapping[str, int]) -> Allocation | None:
    """Convert the result of `torch.cuda.memory_stats()`; None if it is empty, before the device is used."""
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
