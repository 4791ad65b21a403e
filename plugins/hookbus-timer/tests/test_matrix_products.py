"""Tests of the device and the data type of matrix products."""

import pytest
import torch
from torch import nn

from hookbus_timer.matrix_products import get_device_name, infer_precision


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
