import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookbus_gradient_flow.statistics import (
    Gradient,
    compute_gradient_stats,
    list_paths,
    match_targets,
    select_parameters,
)


def make_parameter(gradient, **options):
    parameter = nn.Parameter(torch.zeros_like(gradient), **options)
    parameter.grad = gradient
    return parameter


class OperationCounter(TorchDispatchMode):
    """Count the operations on the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class HostCopyRecorder(TorchFunctionMode):
    """Record the names of functions that copy from the device to the host."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in {"item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__"}:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_mean_maximum_and_norm_are_of_the_absolute_values():
    gradients = compute_gradient_stats({"w": make_parameter(torch.tensor([[3.0, -4.0], [0.0, 0.0]]))}).to_host()
    assert gradients == [Gradient("w", mean=7 / 4, max=4.0, l2=5.0)]


def test_gradients_are_divided_by_the_scale():
    gradients = compute_gradient_stats(
        {"w": make_parameter(torch.tensor([512.0, -512.0]))}, scale=torch.tensor(1024.0)
    ).to_host()
    assert gradients == [Gradient("w", mean=0.5, max=0.5, l2=pytest.approx(0.5**0.5))]


def test_parameter_without_gradient_is_missing_and_frozen_or_empty_is_ignored():
    frozen, empty = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.ones(0))
    stats = compute_gradient_stats(
        {"a": nn.Parameter(torch.ones(2)), "b": make_parameter(torch.ones(1)), "c": frozen, "d": empty}
    )
    assert (stats.missing, [gradient.name for gradient in stats.to_host()]) == (["a"], ["b"])


def test_model_without_any_gradient_has_no_statistics():
    stats = compute_gradient_stats({"a": nn.Parameter(torch.ones(2))})
    assert (stats.missing, stats.to_host()) == (["a"], [])


def test_float16_is_accumulated_in_float32():
    gradients = compute_gradient_stats(
        {"w": make_parameter(torch.full((1000,), 1000.0, dtype=torch.float16))}
    ).to_host()
    assert (gradients[0].mean, gradients[0].max) == (1000.0, 1000.0)
    assert gradients[0].l2 == pytest.approx(1000 * 1000**0.5, rel=1e-6)


def test_float64_is_not_converted():
    gradients = compute_gradient_stats(
        {"a": make_parameter(torch.tensor([1e200], dtype=torch.float64)), "b": make_parameter(torch.ones(1))}
    ).to_host()
    assert [gradient.max for gradient in gradients] == [1e200, 1.0]


def test_parameters_of_mixed_dtypes_have_their_own_statistics():
    dtypes = [torch.float32, torch.float64, torch.float16, torch.float64, torch.float32]
    parameters = {f"w{i}": make_parameter(torch.tensor([float(i + 1)], dtype=dtype)) for i, dtype in enumerate(dtypes)}
    assert compute_gradient_stats(parameters).to_host() == [
        Gradient(f"w{i}", i + 1.0, i + 1.0, i + 1.0) for i in range(5)
    ]


def test_mean_of_a_sparse_gradient_includes_implicit_zeros():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    # Row 1 was used twice: its gradient is (2, 2), and the other six elements are zero.
    gradients = compute_gradient_stats({"w": embedding.weight}).to_host()
    assert gradients == [Gradient("w", mean=4 / 8, max=2.0, l2=pytest.approx(8**0.5))]


def test_complex_gradients_are_measured_by_their_absolute_values():
    assert compute_gradient_stats({"w": make_parameter(torch.tensor([3 + 4j]))}).to_host() == [
        Gradient("w", 5.0, 5.0, 5.0)
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_value_makes_the_maximum_nonfinite(value):
    gradients = compute_gradient_stats({"w": make_parameter(torch.tensor([1.0, value, 1.0]))}).to_host()
    assert not math.isfinite(gradients[0].max)


def test_statistics_are_copied_to_the_host_once():
    parameters = {f"w{i}": make_parameter(torch.randn(3)) for i in range(20)}
    with HostCopyRecorder() as copies:
        stats = compute_gradient_stats(parameters, scale=torch.tensor(2.0))
        assert copies.names == []
        stats.to_host()
    assert copies.names == ["tolist"]


def test_number_of_operations_does_not_depend_on_the_number_of_parameters():
    def count_operations(count):
        parameters = {f"w{i}": make_parameter(torch.randn(3)) for i in range(count)}
        with OperationCounter() as operations:
            compute_gradient_stats(parameters, scale=torch.tensor(2.0))
        return operations.count

    assert count_operations(100) == count_operations(1)


def test_statistics_reference_neither_the_graph_nor_the_gradients():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = (weight * 3).clone()  # as after backward(create_graph=True)
    stats = compute_gradient_stats({"w": weight})
    weight.grad.detach().fill_(7.0)
    assert not stats.norms.requires_grad
    assert stats.to_host()[0].max == 3.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), min_size=1, max_size=4))
def test_statistics_equal_those_of_exact_arithmetic(rows):
    gradients = compute_gradient_stats(
        {str(i): make_parameter(torch.tensor(row)) for i, row in enumerate(rows)}
    ).to_host()
    for row, gradient in zip(rows, gradients, strict=True):
        absolute = [abs(value) for value in row]
        assert gradient.max == max(absolute)
        assert gradient.mean == pytest.approx(math.fsum(absolute) / len(row), rel=1e-5)
        assert gradient.l2 == pytest.approx(math.hypot(*row), rel=1e-5, abs=1e-20)


NAMES = ["stem.weight", "layer1.0.weight", "layer1.0.bias", "layer10.0.weight", "head.weight"]


@pytest.mark.parametrize(
    ("targets", "selected"),
    [
        ([], NAMES),
        (["layer1"], ["layer1.0.weight", "layer1.0.bias"]),
        (["layer1.0.bias"], ["layer1.0.bias"]),
        (["layer1*"], ["layer1.0.weight", "layer1.0.bias", "layer10.0.weight"]),
        (["layer?"], ["layer1.0.weight", "layer1.0.bias"]),
        (["*.weight"], ["stem.weight", "layer1.0.weight", "layer10.0.weight", "head.weight"]),
        (["head", "stem", "head.weight"], ["stem.weight", "head.weight"]),
    ],
)
def test_target_selects_the_parameters_below_its_path_or_matching_paths(targets, selected):
    assert match_targets(NAMES, targets) == (selected, [])


def test_unmatched_targets_are_returned():
    assert match_targets(NAMES, ["layer2", "head", "*.gamma", "layer"]) == (
        ["head.weight"],
        ["layer2", "*.gamma", "layer"],
    )


def test_paths_include_modules_and_parameters():
    assert list_paths(["a.0.weight", "a.0.bias", "b"]) == ["a", "a.0", "a.0.weight", "a.0.bias", "b"]


def test_shared_parameter_is_selected_once_by_its_first_matching_name():
    shared, own = object(), object()
    parameters = {"in.weight": shared, "in.bias": own, "out.weight": shared}
    assert select_parameters(parameters, []) == {"in.weight": shared, "in.bias": own}
    assert select_parameters(parameters, ["out"]) == {"out.weight": shared}
    assert select_parameters(parameters, ["out", "in"]) == {"in.weight": shared, "in.bias": own}
