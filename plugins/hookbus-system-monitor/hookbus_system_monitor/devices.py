"""Where the numbers about devices come from: the interface, one source that has none, and what torch itself knows."""

from __future__ import annotations

from typing import Protocol

import torch

from hookbus_system_monitor.readings import GB, Values

__all__ = ["AcceleratorProvider", "NullProvider", "Provider", "cuda_uuids"]


class Provider(Protocol):
    """A source of numbers about devices, read by one thread.

    Names begin with `gpu<index>/`, where the index is the one by which torch knows the device.
    """

    def read(self) -> Values:
        """The numbers at this moment; None for one that cannot be had. Does not raise where a device is gone."""

    def close(self) -> None:
        """Give everything back. May be called twice."""


class NullProvider:
    """No devices."""

    def read(self) -> Values:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Nothing to give back."""


class AcceleratorProvider:
    """What torch holds of the memory of its accelerator, of whatever maker it is."""

    def read(self) -> Values:
        """For each device what tensors use and what torch has reserved, in GB; nothing where there is no device."""
        accelerator, values = torch.accelerator, Values()
        for index in range(accelerator.device_count()):
            values[f"gpu{index}/allocated_gb"] = accelerator.memory_allocated(index) / GB
            values[f"gpu{index}/reserved_gb"] = accelerator.memory_reserved(index) / GB
        return values

    def close(self) -> None:
        """Nothing to give back."""


def cuda_uuids() -> list[str] | None:
    """The UUIDs of torch's CUDA devices in its own order, without their prefix; None where it uses none yet."""
    if not torch.cuda.is_initialized():
        return None
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
