"""Raw and averaged weights of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from hookbus._run.weights import Weights
from hookbus.errors import HookError


class Averaging:
    """Provider whose average is twice the weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.raw_weights: dict[str, Any] | None = None
        self.waited = 0

    def raw(self) -> dict[str, Any] | None:
        return self.raw_weights

    def averaged(self) -> dict[str, Any] | None:
        return {name: 2 * value for name, value in (self.raw_weights or self.model.state_dict()).items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        self.raw_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.averaged() or {})
        yield
        self.model.load_state_dict(self.raw_weights)
        self.raw_weights = None

    def wait(self) -> None:
        self.waited += 1


@pytest.fixture
def model() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    return model


def get_value(weights: dict[str, Any] | None) -> float | None:
    return None if weights is None else float(weights["weight"])


def test_weights_without_a_provider_are_raw(model: nn.Module) -> None:
    weights = Weights(lambda: model)
    assert get_value(weights.raw()) == 3.0
    assert weights.averaged() is None
    with weights.applied():
        assert get_value(weights.raw()) == 3.0
    weights.wait()


def test_run_without_a_model_has_no_weights() -> None:
    assert Weights(lambda: None).raw() == {}


def test_raw_weights_are_available_while_the_averaged_ones_are_applied(model: nn.Module) -> None:
    weights, provider = Weights(lambda: model), Averaging(model)
    weights.provide(provider)
    assert (get_value(weights.raw()), get_value(weights.averaged())) == (3.0, 6.0)
    with weights.applied():
        assert model.weight.item() == 6.0
        assert (get_value(weights.raw()), get_value(weights.averaged())) == (3.0, 6.0)
    assert model.weight.item() == 3.0
    weights.wait()
    assert provider.waited == 1


def test_second_provider_raises(model: nn.Module) -> None:
    weights, provider = Weights(lambda: model), Averaging(model)
    weights.provide(provider)
    weights.provide(provider)
    with pytest.raises(HookError, match="Averaging and Averaging both average the weights. Use only one"):
        weights.provide(Averaging(model))
    weights.provide(None)
    assert weights.averaged() is None
    weights.provide(Averaging(model))


def test_raw_weights_have_the_names_of_the_unwrapped_model(model: nn.Module) -> None:
    compiled = torch.compile(model, backend="eager")
    assert list(Weights(lambda: compiled).raw()) == ["weight"]


class TestLoad:
    def test_load_copies_into_the_model_and_the_average(self, model: nn.Module) -> None:
        weights, average = Weights(lambda: model), FixedAverage()
        weights.provide(average)
        raw = {"weight": torch.full((1, 1), 5.0)}
        weights.load(raw, {"weight": torch.full((1, 1), 7.0)})
        raw["weight"].fill_(0)

        assert (get_value(weights.raw()), get_value(weights.averaged())) == (5.0, 7.0)
        assert average.waited == 1

    def test_load_without_an_average_does_not_modify_the_average(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.provide(FixedAverage())
        weights.load({"weight": torch.full((1, 1), 5.0)}, None)

        assert (get_value(weights.raw()), get_value(weights.averaged())) == (5.0, 1.0)

    def test_load_without_a_provider_loads_the_raw_weights(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.load({"weight": torch.full((1, 1), 5.0)}, {"weight": torch.full((1, 1), 7.0)})

        assert get_value(weights.raw()) == 5.0

    @pytest.mark.parametrize(
        ("raw", "averaged"),
        [
            ({"bias": torch.ones(1)}, None),
            ({"weight": torch.ones(2, 2)}, None),
            ({"weight": torch.ones(1, 1)}, {"bias": torch.ones(1)}),
        ],
    )
    def test_load_of_weights_of_another_model_raises(self, model: nn.Module, raw: Any, averaged: Any) -> None:
        weights = Weights(lambda: model)
        weights.provide(FixedAverage())
        with pytest.raises(HookError, match="the weights do not match the model"):
            weights.load(raw, averaged)

    def test_load_raises_while_averages_are_applied_and_without_a_model(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.provide(Averaging(model))
        with weights.applied(), pytest.raises(HookError, match="outside of validations"):
            weights.load(model.state_dict(), None)
        with pytest.raises(HookError, match="outside of validations"):
            Weights(lambda: None).load({}, None)


class TestReaders:
    def test_weights_are_exchanged_after_waiting_for_all_readers(self, model: nn.Module) -> None:
        weights, waits = Weights(lambda: model), []
        one = weights.add_reader(lambda: waits.append("one"))
        weights.add_reader(lambda: waits.append("other"))

        weights.load(model.state_dict(), None)
        one()
        with weights.applied():
            pass

        assert waits == ["one", "other", "other"]


class TestFinish:
    def test_finish_returns_whether_the_weights_were_exchanged(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        assert not weights.finish()
        weights.restore_at_end(lambda: True)
        assert weights.finish()
        weights.restore_at_end(None)
        assert not weights.finish()

    def test_second_exchange_function_raises(self, model: nn.Module) -> None:
        weights, first = Weights(lambda: model), lambda: True
        weights.restore_at_end(first)
        weights.restore_at_end(first)
        with pytest.raises(HookError, match="only one can"):
            weights.restore_at_end(lambda: True)


class FixedAverage(Averaging):
    """Provider whose average is a separate tensor, initially 1."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1))
        self.mean = {"weight": torch.ones(1, 1)}

    def averaged(self) -> dict[str, Any]:
        return self.mean
