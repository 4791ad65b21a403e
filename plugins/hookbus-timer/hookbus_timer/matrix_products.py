"""Name of a device and data type of its matrix products, which determine its peak FLOP/s. Usable without hookbus."""

from __future__ import annotations

from typing import Any, Literal

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

_DTYPES: dict[str, Precision] = {
    "torch.float64": "fp64",
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
}


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
