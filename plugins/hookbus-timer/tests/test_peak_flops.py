"""Tests of the peak FLOP/s of devices."""

import pytest
import torch
from torch import nn

from hookbus_timer.peak_flops import PEAK_TFLOPS, get_device_name, get_peak_flops, infer_precision


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H200", "bf16", 989e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "fp16", 756e12),
        ("NVIDIA H100 NVL", "tf32", 417e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-PCIE-16GB", "fp16", 112e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla T4", "bf16", None),  # not supported
        ("NVIDIA L4", "bf16", 121e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L40", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H200 NVL", "bf16", None),
        ("NVIDIA GH200 480GB", "bf16", None),
        ("some device", "fp32", None),
        ("", "fp32", None),
    ],
)
def test_peak_depends_on_device_and_type(name, precision, peak):
    assert get_peak_flops(name, precision) == peak


def test_narrower_types_are_not_slower():
    for rates in PEAK_TFLOPS.values():
        ordered = [rates[precision] for precision in ("fp64", "fp32", "tf32", "bf16") if precision in rates]
        assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("dtype", "autocast", "matmul", "precision"),
    [
        (torch.float32, "fp32", "highest", "fp32"),
        (torch.float32, "fp32", "high", "tf32"),
        (torch.float32, "bf16", "highest", "bf16"),
        (torch.float32, "fp16", "highest", "fp16"),
        (torch.bfloat16, "fp32", "high", "bf16"),
        (torch.float64, "fp32", "high", "fp64"),
        (torch.float8_e4m3fn, "fp32", "high", None),
    ],
)
def test_type_is_that_of_autocast_or_of_the_parameters(dtype, autocast, matmul, precision, monkeypatch):
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: matmul)
    model = nn.Linear(1, 1).to(dtype)
    assert infer_precision(model, autocast) == precision


def test_type_and_device_are_unknown_without_a_model_and_a_device():
    assert infer_precision(None, "fp32") is None
    assert infer_precision(nn.Flatten(), "fp32") is None
    assert get_device_name(None) == get_device_name("cpu") == ""
