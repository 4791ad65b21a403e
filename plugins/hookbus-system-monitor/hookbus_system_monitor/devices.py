"""Providers of device metrics: the interface, and torch's own statistics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

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
            values |= self._reader.read(
                Probe(
                    f"memory of torch on device {index}",
                    (f"gpu{index}/allocated_gb", f"gpu{index}/reserved_gb"),
                    partial(_read_memory, index),
                )
            )
        return values

    def close(self) -> None:
        """Do nothing."""


def _read_memory(index: int) -> Sequence[float]:
    accelerator = torch.accelerator
    return accelerator.memory_allocated(index) / GB, accelerator.memory_reserved(index) / GB


def get_cuda_uuids() -> list[str] | None:
    """Return the UUIDs of torch's CUDA devices by index, without the prefix; None before CUDA is initialized."""
    # The query would initialize CUDA, after which forked worker processes cannot use it.
    if not torch.cuda.is_initialized():
        return None
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
