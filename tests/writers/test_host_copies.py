"""Tests of host copies for another thread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hookbus.writers.host_copies import nbytes, snapshot_value, to_finite_array, to_number


@pytest.mark.parametrize("value", [torch.ones(2, requires_grad=True), np.ones(2)])
def test_copy_is_independent_of_later_changes(value: torch.Tensor | np.ndarray) -> None:
    read = snapshot_value(value)
    with torch.no_grad():
        value *= 7
    assert read().tolist() == [1, 1]


@pytest.mark.gpu
def test_copy_from_a_device_is_independent_of_later_kernels() -> None:
    value = torch.ones(1000, device="cuda")
    read = snapshot_value(value)
    value.mul_(7)
    assert read().sum().item() == 1000
    assert read().device.type == "cpu"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        (torch.tensor([3]), 3.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ],
)
def test_number_of_any_library_becomes_a_float(value: object, number: float) -> None:
    assert (to_number(value), type(to_number(value))) == (number, float)


@pytest.mark.parametrize(
    ("value", "error"),
    [("a", TypeError), (None, TypeError), (1j, TypeError), (torch.ones(2), RuntimeError), (10**400, OverflowError)],
)
def test_value_that_is_not_a_single_number_raises(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        to_number(value)


def test_size_of_a_tensor_includes_its_bytes() -> None:
    assert nbytes(torch.zeros(10, dtype=torch.float64)) == 180
    assert nbytes(3.0) == 100


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([[1, math.nan], [math.inf, -2]], dtype=torch.bfloat16, requires_grad=True),
        np.array([1, math.nan, -math.inf, -2]),
        [1, -2],
    ],
)
def test_finite_values_are_one_dimensional_float64(values: Any) -> None:
    finite = to_finite_array("values", values)
    assert (finite.tolist(), finite.dtype) == ([1.0, -2.0], np.float64)


@pytest.mark.parametrize("values", [[], [math.nan, math.inf]])
def test_values_without_a_finite_one_raise(values: list[float]) -> None:
    with pytest.raises(ValueError, match="'values' contains no finite value"):
        to_finite_array("values", values)
