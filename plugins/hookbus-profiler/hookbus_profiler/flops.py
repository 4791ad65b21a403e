"""Floating-point operations of an iteration, and peak rates of devices.

A multiply-add counts as two operations. Usable without hookbus.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, nullcontext

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

_CPU_FLASH_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_CPU_FLASH_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

PEAK_FLOPS_PER_SECOND = {
    "B200": 2250e12, "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12,
    "H100": 989e12, "A100": 312e12, "A10G": 70e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "V100 PCIE": 112e12,
    "V100": 125e12, "T4": 65e12,
}  # fmt: skip
"""Dense 16-bit tensor core FLOP/s from NVIDIA's data sheets, by words of the device name.

The first entry whose words all occur in the name applies, so more specific names precede shorter ones.
"""


class FlopCounter:
    """Count the floating-point operations between construction and `stop()`, backward included.

    Matrix products, convolutions and attention are counted by their shapes, masked elements included. Compiled
    functions run eagerly while counting.
    """

    def __init__(self) -> None:
        self._mode = FlopCounterMode(
            display=False,
            custom_mapping={
                _CPU_FLASH_ATTENTION: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
                _CPU_FLASH_ATTENTION_BACKWARD: lambda *shapes, **_: sdpa_backward_flop_count(*shapes[:4]),
            },
        )
        # The tracker of FlopCounterMode registers hooks on all modules to count per module; only the total is needed.
        tracker = nullcontext()
        tracker.parents = frozenset({"Global"})  # type: ignore[attr-defined]
        self._mode.mod_tracker = tracker  # type: ignore[assignment]
        self._exit = ExitStack()
        # Without this, torch 2.13 never compiles a function again that was called under a TorchDispatchMode.
        self._exit.enter_context(torch.compiler.set_stance("force_eager"))
        self._exit.enter_context(self._mode)

    def stop(self) -> int:
        """Stop counting and return the number of floating-point operations."""
        self._exit.close()
        return self._mode.get_total_flops()


def get_peak_flops(device_name: str) -> float | None:
    """Return the peak FLOP/s of a device with 16-bit types; None if unknown.

    Args:
        device_name: Name returned by `torch.cuda.get_device_name()`.
    """
    words = set(re.split(r"[ -]", device_name))
    if "MIG" in words:
        return None  # a MIG slice has a fraction of the peak rate, which the name does not determine
    return next((peak for name, peak in PEAK_FLOPS_PER_SECOND.items() if words.issuperset(name.split())), None)
