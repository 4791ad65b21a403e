"""Out-of-memory errors, and release of memory."""

from __future__ import annotations

import gc

import torch

MESSAGES = (
    "out of memory",  # CUDA, MPS and XPU, if the error is not an `OutOfMemoryError`
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # cuDNN raises it if a convolution has no workspace
)
"""Parts of the messages of a `RuntimeError` of torch for an allocation that failed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports that an allocation failed, on the CPU or on a device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


def release_memory() -> None:
    """Free the objects of reference cycles, and the cached memory of the accelerator."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()
