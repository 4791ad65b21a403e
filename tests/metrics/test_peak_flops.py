"""Tests of the peak FLOP/s of devices."""

import pytest

from hookbus.metrics import get_peak_flops
from hookbus.metrics.peak_flops import PEAK_TFLOPS


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
        ("NVIDIA L40", "bf16", 181e12),
        ("NVIDIA L40", "fp64", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H200 NVL", "bf16", 835e12),
        ("NVIDIA GH200 480GB", "bf16", 989e12),
        ("NVIDIA B200", "fp16", 2250e12),
        ("NVIDIA A10G", "fp16", 70e12),
        ("NVIDIA RTX A1000", "fp16", None),
        ("NVIDIA T400 4GB", "fp16", None),
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


def test_each_device_has_a_rate_of_fp16_which_the_profiler_reads():
    assert all("fp16" in rates for rates in PEAK_TFLOPS.values())
