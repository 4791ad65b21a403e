"""Peak FLOP/s of devices by data type, from the data sheets of their vendors.

Usable without hookbus.
"""

from __future__ import annotations

import re
from typing import Any, Literal

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

_DTYPES: dict[str, Precision] = {
    "torch.float64": "fp64",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}

PEAK_TFLOPS: dict[str, dict[Precision, float]] = {
    "H200": {"fp64": 34, "fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},  # SXM
    "H100 NVL": {"fp64": 30, "fp32": 60, "tf32": 417, "bf16": 835, "fp16": 835},
    "H100 PCIe": {"fp64": 26, "fp32": 51, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100": {"fp64": 34, "fp32": 67, "tf32": 494, "bf16": 989, "fp16": 989},  # SXM
    "A100": {"fp64": 9.7, "fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362},
    "L4": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
    "V100 PCIE": {"fp64": 7, "fp32": 14, "fp16": 112},
    "V100": {"fp64": 7.8, "fp32": 15.7, "fp16": 125},  # SXM2
    "T4": {"fp32": 8.1, "fp16": 65},
}
"""Peak rates in 1e12 FLOP/s without sparsity, by words of the device name. The data sheets state twice the rate of the
Hopper and Ada devices with sparsity. The first entry whose words all occur in the name applies.

Sources, all of NVIDIA: "H200 Tensor Core GPU", "H100 Tensor Core GPU", "A100 Tensor Core GPU", "L40S", "L4 Tensor Core
GPU", "V100" and "T4" data sheets. `fp64` and `fp32` are the rates without tensor cores.
"""
_WITHOUT_ENTRY = ("MIG", "H200 NVL", "GH200")
"""Names of devices whose rates differ from those of an entry that matches."""


def get_peak_flops(device_name: str, precision: Precision) -> float | None:
    """Return the peak FLOP/s of a device, None if it is unknown.

    Args:
        device_name: Name returned by `torch.cuda.get_device_name()`.
        precision: Data type of the matrix products.
    """
    words = set(re.split(r"[ -]", device_name))
    if any(words.issuperset(name.split()) for name in _WITHOUT_ENTRY):
        return None
    rates = next((rates for name, rates in PEAK_TFLOPS.items() if words.issuperset(name.split())), {})
    rate = rates.get(precision)
    return None if rate is None else rate * 1e12


def get_device_name(device: Any) -> str:
    """Return the name of a CUDA device, "" for any other device or None."""
    import torch

    is_cuda = device is not None and torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if is_cuda else ""


def infer_precision(model: Any, autocast: str) -> Precision | None:
    """Return the data type of the matrix products of a model, None if it has no parameters of a known type.

    Args:
        model: Model; None if it is unknown.
        autocast: "fp32", or the type of autocast, "bf16" or "fp16".
    """
    import torch

    autocast_types: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16"}
    if autocast in autocast_types:
        return autocast_types[autocast]
    parameter = next(iter(model.parameters()), None) if model is not None else None
    precision = None if parameter is None else _DTYPES.get(str(parameter.dtype))
    uses_tf32 = torch.get_float32_matmul_precision() != "highest"
    return "tf32" if precision == "fp32" and uses_tf32 else precision
