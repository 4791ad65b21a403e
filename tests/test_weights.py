"""Raw and averaged weights, whatever is in the model right now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import HookError
from hookbus.weights import Weights, unwrapped


class Averaging:
    """A provider whose average is twice the weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.kept: dict[str, Any] | None = None
        self.waited = 0

    def raw(self) -> dict[str, Any] | None:
        return self.kept

    def averaged(self) -> dict[str, Any] | None:
        return {name: 2 * value for name, value in (self.kept or self.model.state_dict()).items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        self.kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.averaged() or {})
        yield
        self.model.load_state_dict(self.kept)
        self.kept = None

    def wait(self) -> None:
        self.waited += 1


@pytest.fixture
def model() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    return model


def value_of(weights: dict[str, Any] | None) -> float | None:
    return None if weights is None else float(weights["weight"])


def test_where_nobody_averages_there_are_raw_weights_only(model: nn.Module) -> None:
    weights = Weights(lambda: model)
    assert value_of(weights.raw()) == 3.0
    assert weights.averaged() is None
    with weights.applied():
        assert value_of(weights.raw()) == 3.0
    weights.wait()


def test_without_a_model_there_are_no_weights() -> None:
    assert Weights(lambda: None).raw() == {}


def test_raw_weights_stay_raw_while_averaged_ones_are_in_the_model(model: nn.Module) -> None:
    weights, provider = Weights(lambda: model), Averaging(model)
    weights.provide(provider)
    assert (value_of(weights.raw()), value_of(weights.averaged())) == (3.0, 6.0)
    with weights.applied():
        assert model.weight.item() == 6.0
        assert (value_of(weights.raw()), value_of(weights.averaged())) == (3.0, 6.0)
    assert model.weight.item() == 3.0
    weights.wait()
    assert provider.waited == 1


def test_one_run_has_one_average(model: nn.Module) -> None:
    weights, provider = Weights(lambda: model), Averaging(model)
    weights.provide(provider)
    weights.provide(provider)
    with pytest.raises(HookError, match="Averaging averages the weights already; one run has one average"):
        weights.provide(Averaging(model))
    weights.provide(None)
    assert weights.averaged() is None
    weights.provide(Averaging(model))


class Parallel(nn.Module):
    """As DistributedDataParallel wraps a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_the_names_of_weights_are_those_of_the_module_inside_wrappers(model: nn.Module) -> None:
    compiled = torch.compile(Parallel(model), backend="eager")
    assert unwrapped(compiled) is model
    assert unwrapped(Parallel(Parallel(model))) is model
    assert unwrapped(model) is model
    assert list(Weights(lambda: compiled).raw()) == ["weight"]


def test_a_module_with_more_than_a_child_named_module_is_no_wrapper(model: nn.Module) -> None:
    scaled = Parallel(model)
    scaled.scale = nn.Parameter(torch.ones(1))
    assert unwrapped(scaled) is scaled
    counting = Parallel(model)
    counting.register_buffer("count", torch.zeros(1))
    assert unwrapped(counting) is counting
    assert unwrapped(nn.Sequential(model)) is not model
