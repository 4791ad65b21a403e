"""Raw and averaged weights, whatever is in the model right now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import HookError
from hookbus.model.weights import Weights


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
    with pytest.raises(HookError, match="Averaging already averages the weights. Use only one"):
        weights.provide(Averaging(model))
    weights.provide(None)
    assert weights.averaged() is None
    weights.provide(Averaging(model))


def test_the_names_of_raw_weights_are_those_inside_wrappers(model: nn.Module) -> None:
    compiled = torch.compile(model, backend="eager")
    assert list(Weights(lambda: compiled).raw()) == ["weight"]


class TestLoad:
    def test_puts_copies_into_the_model_and_into_the_average(self, model: nn.Module) -> None:
        weights, average = Weights(lambda: model), Fixed()
        weights.provide(average)
        given = {"weight": torch.full((1, 1), 5.0)}
        weights.load(given, {"weight": torch.full((1, 1), 7.0)})
        given["weight"].fill_(0)

        assert (value_of(weights.raw()), value_of(weights.averaged())) == (5.0, 7.0)
        assert average.waited == 1

    def test_leaves_the_average_alone_where_none_is_given(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.provide(Fixed())
        weights.load({"weight": torch.full((1, 1), 5.0)}, None)

        assert (value_of(weights.raw()), value_of(weights.averaged())) == (5.0, 1.0)

    def test_without_an_average_takes_the_raw_ones(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.load({"weight": torch.full((1, 1), 5.0)}, {"weight": torch.full((1, 1), 7.0)})

        assert value_of(weights.raw()) == 5.0

    @pytest.mark.parametrize(
        ("raw", "averaged"),
        [
            ({"bias": torch.ones(1)}, None),
            ({"weight": torch.ones(2, 2)}, None),
            ({"weight": torch.ones(1, 1)}, {"bias": torch.ones(1)}),
        ],
    )
    def test_of_another_model_is_an_error(self, model: nn.Module, raw: Any, averaged: Any) -> None:
        weights = Weights(lambda: model)
        weights.provide(Fixed())
        with pytest.raises(HookError, match="the weights do not match the model"):
            weights.load(raw, averaged)

    def test_is_refused_while_averages_are_in_the_model_and_without_one(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        weights.provide(Averaging(model))
        with weights.applied(), pytest.raises(HookError, match="outside of validations"):
            weights.load(model.state_dict(), None)
        with pytest.raises(HookError, match="outside of validations"):
            Weights(lambda: None).load({}, None)


class TestReaders:
    def test_are_all_waited_for_before_weights_are_exchanged(self, model: nn.Module) -> None:
        weights, waited = Weights(lambda: model), []
        one = weights.read_by(lambda: waited.append("one"))
        weights.read_by(lambda: waited.append("other"))

        weights.load(model.state_dict(), None)
        one()
        weights.applied()

        assert waited == ["one", "other", "other"]


class TestPutBack:
    def test_is_done_when_training_is_over_and_says_whether_it_was(self, model: nn.Module) -> None:
        weights = Weights(lambda: model)
        assert not weights.finish()
        weights.put_back(lambda: True)
        assert weights.finish()
        weights.put_back(None)
        assert not weights.finish()

    def test_is_for_one_only(self, model: nn.Module) -> None:
        weights, first = Weights(lambda: model), lambda: True
        weights.put_back(first)
        weights.put_back(first)
        with pytest.raises(HookError, match="only one can"):
            weights.put_back(lambda: True)


class Fixed(Averaging):
    """A provider whose average is a tensor of its own, 1 at first."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1))
        self.mean = {"weight": torch.ones(1, 1)}

    def averaged(self) -> dict[str, Any]:
        return self.mean
