import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookbus_gradient_flow.flow import Gradient, measure


def parameter(gradient, **options):
    made = nn.Parameter(torch.zeros_like(gradient), **options)
    made.grad = gradient
    return made


class Operations(TorchDispatchMode):
    """Counts what is asked of the device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts what copies from the device to the host."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in {"item", "tolist", "cpu", "numpy", "__float__", "__bool__", "__int__"}:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_mean_largest_and_norm_are_of_the_absolute_values():
    found = measure({"w": parameter(torch.tensor([[3.0, -4.0], [0.0, 0.0]]))}).take()
    assert found == [Gradient("w", mean=7 / 4, max=4.0, l2=5.0)]


def test_the_scale_is_divided_out():
    found = measure({"w": parameter(torch.tensor([512.0, -512.0]))}, scale=torch.tensor(1024.0)).take()
    assert found == [Gradient("w", mean=0.5, max=0.5, l2=pytest.approx(0.5**0.5))]


def test_a_parameter_without_a_gradient_is_missing_and_a_frozen_or_empty_one_is_left_out():
    frozen, empty = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.ones(0))
    reading = measure({"a": nn.Parameter(torch.ones(2)), "b": parameter(torch.ones(1)), "c": frozen, "d": empty})
    assert (reading.missing, [each.name for each in reading.take()]) == (["a"], ["b"])


def test_without_any_gradient_there_is_nothing_to_take():
    reading = measure({"a": nn.Parameter(torch.ones(2))})
    assert (reading.missing, reading.take()) == (["a"], [])


def test_sixteen_bits_are_added_up_in_thirty_two():
    found = measure({"w": parameter(torch.full((1000,), 1000.0, dtype=torch.float16))}).take()
    assert (found[0].mean, found[0].max) == (1000.0, 1000.0)
    assert found[0].l2 == pytest.approx(1000 * 1000**0.5, rel=1e-6)


def test_sixty_four_bits_are_kept():
    found = measure({"a": parameter(torch.tensor([1e200], dtype=torch.float64)), "b": parameter(torch.ones(1))}).take()
    assert [each.max for each in found] == [1e200, 1.0]


def test_each_parameter_has_its_own_numbers_whatever_its_type():
    types = [torch.float32, torch.float64, torch.float16, torch.float64, torch.float32]
    parameters = {f"w{i}": parameter(torch.tensor([float(i + 1)], dtype=kind)) for i, kind in enumerate(types)}
    assert measure(parameters).take() == [Gradient(f"w{i}", i + 1.0, i + 1.0, i + 1.0) for i in range(5)]


def test_a_sparse_gradient_counts_every_element_of_its_parameter():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    # Row 1 was used twice: (2, 2) there, zero in the six other elements.
    found = measure({"w": embedding.weight}).take()
    assert found == [Gradient("w", mean=4 / 8, max=2.0, l2=pytest.approx(8**0.5))]


def test_complex_gradients_are_measured_by_their_absolute_values():
    assert measure({"w": parameter(torch.tensor([3 + 4j]))}).take() == [Gradient("w", 5.0, 5.0, 5.0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(bad):
    found = measure({"w": parameter(torch.tensor([1.0, bad, 1.0]))}).take()
    assert not math.isfinite(found[0].max)


def test_a_record_is_read_in_one_piece_and_measuring_reads_nothing():
    parameters = {f"w{i}": parameter(torch.randn(3)) for i in range(20)}
    with Reads() as reads:
        reading = measure(parameters, scale=torch.tensor(2.0))
        assert reads.names == []
        reading.take()
    assert reads.names == ["tolist"]


def test_the_device_is_asked_as_little_for_many_parameters_as_for_one():
    def asked(count):
        parameters = {f"w{i}": parameter(torch.randn(3)) for i in range(count)}
        with Operations() as operations:
            measure(parameters, scale=torch.tensor(2.0))
        return operations.count

    assert asked(100) == asked(1)


def test_nothing_is_kept_of_the_graph_or_of_the_gradients():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = (weight * 3).clone()  # as after backward(create_graph=True)
    reading = measure({"w": weight})
    weight.grad.detach().fill_(7.0)
    assert not reading.numbers.requires_grad
    assert reading.take()[0].max == 3.0


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5), min_size=1, max_size=4))
def test_it_agrees_with_arithmetic(rows):
    found = measure({str(i): parameter(torch.tensor(row)) for i, row in enumerate(rows)}).take()
    for row, each in zip(rows, found, strict=True):
        sizes = [abs(value) for value in row]
        assert each.max == max(sizes)
        assert each.mean == pytest.approx(math.fsum(sizes) / len(row), rel=1e-5)
        assert each.l2 == pytest.approx(math.hypot(*row), rel=1e-5, abs=1e-20)
