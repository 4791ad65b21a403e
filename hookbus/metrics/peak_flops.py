"""Peak FLOP/s of devices by data type, from the data sheets of their vendors."""

from __future__ import annotations

import re

PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "GH200": {"fp64": 34, "fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},
    "B200": {"tf32": 1125, "bf16": 2250, "fp16": 2250},
    "H200 NVL": {"fp64": 30, "fp32": 60, "tf32": 417, "bf16": 835, "fp16": 835},
    "H200": {"fp64": 34, "fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},  # SXM
    "H100 NVL": {"fp64": 30, "fp32": 60, "tf32": 417, "bf16": 835, "fp16": 835},
    "H100 PCIe": {"fp64": 26, "fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100": {"fp64": 34, "fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},  # SXM
    "A100": {"fp64": 9.7, "fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "A10G": {"bf16": 70, "fp16": 70},
    "L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362},
    "L40": {"fp32": 90.5, "tf32": 90.5, "bf16": 181, "fp16": 181},
    "L4": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
    "V100 PCIE": {"fp64": 7, "fp32": 14, "fp16": 112},
    "V100": {"fp64": 7.8, "fp32": 15.7, "fp16": 125},  # SXM2
    "T4": {"fp32": 8.1, "fp16": 65},
}
"""Peak rates in 1e12 FLOP/s without sparsity, by words of the device name. The data sheets state twice the rate of the
Blackwell, Hopper and Ada devices with sparsity. The first entry whose words all occur in the name applies.

Sources: the data sheets of NVIDIA of each device. `fp64` and `fp32` are the rates without tensor cores. A data type
without an entry is not supported, or its rate is not stated.
"""


def get_peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak FLOP/s of a device, None if it is unknown.

    Args:
        device_name: Name returned by `torch.cuda.get_device_name()`.
        precision: Data type of the matrix products: "fp64", "fp32", "tf32", "bf16" or "fp16".
    """
    words = set(re.split(r"[ -]", device_name))
    if "MIG" in words:
        return None  # a MIG slice has a fraction of the peak rate, which the name does not determine
    rates = next((rates for name, rates in PEAK_TFLOPS.items() if words.issuperset(name.split())), {})
    rate = rates.get(precision)
    return None if rate is None else rate * 1e12
