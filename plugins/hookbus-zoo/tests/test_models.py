from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookbus.errors import ConfigError
from hookbus_zoo import cnn, mlp


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


class TestMlp:
    @pytest.mark.parametrize(
        ("settings", "parameters"),
        [
            ({}, (64 * 64 + 64) + (64 * 64 + 64) + (64 * 10 + 10)),
            ({"width": 3}, (64 * 3 + 3) + (3 * 3 + 3) + (3 * 10 + 10)),
            ({"width": 5, "input_shape": (3, 4, 2), "num_classes": 7}, (24 * 5 + 5) + (5 * 5 + 5) + (5 * 7 + 7)),
            ({"width": 1, "input_shape": [2], "num_classes": 1}, (2 + 1) + (1 + 1) + (1 + 1)),
        ],
        ids=str,
    )
    def test_mlp_has_two_hidden_layers_of_the_width(self, settings: dict[str, Any], parameters: int) -> None:
        assert count_parameters(mlp(**settings)) == parameters

    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (5,)])
    def test_mlp_returns_a_logit_per_class(self, shape: tuple[int, ...]) -> None:
        assert mlp(input_shape=shape, num_classes=4)(torch.zeros(2, *shape)).shape == (2, 4)

    def test_hidden_layers_are_followed_by_relu(self) -> None:
        names = [type(layer).__name__ for layer in mlp()]

        assert names == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]


class TestCnn:
    @pytest.mark.parametrize(
        ("settings", "parameters"),
        [
            # 3 x 3 kernels without bias, batch norm with two parameters per channel, and (8 // 4) ** 2 output positions
            ({}, 9 * 1 * 16 + 2 * 16 + 9 * 16 * 32 + 2 * 32 + (32 * 4) * 10 + 10),
            ({"width": 2}, 9 * 1 * 2 + 2 * 2 + 9 * 2 * 4 + 2 * 4 + (4 * 4) * 10 + 10),
            (
                {"width": 4, "input_shape": [3, 32, 32], "num_classes": 7},
                9 * 3 * 4 + 2 * 4 + 9 * 4 * 8 + 2 * 8 + (8 * 64) * 7 + 7,
            ),
            ({"width": 1, "input_shape": (2, 4, 11)}, 9 * 2 + 2 + 9 * 1 * 2 + 4 + (2 * 1 * 2) * 10 + 10),
        ],
        ids=str,
    )
    def test_cnn_has_convolutions_of_the_width_and_of_twice_the_width(
        self, settings: dict[str, Any], parameters: int
    ) -> None:
        assert count_parameters(cnn(**settings)) == parameters

    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (2, 4, 4), (1, 7, 13)])
    def test_cnn_returns_a_logit_per_class(self, shape: tuple[int, ...]) -> None:
        assert cnn(input_shape=shape, num_classes=4)(torch.zeros(2, *shape)).shape == (2, 4)

    def test_block_is_convolution_norm_relu_and_pooling(self) -> None:
        names = [type(layer).__name__ for layer in cnn()]
        block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]

        assert names == [*block, *block, "Flatten", "Dropout", "Linear"]

    def test_dropout_has_the_configured_probability(self) -> None:
        (dropout,) = [layer for layer in cnn(dropout=0.25) if isinstance(layer, nn.Dropout)]

        assert dropout.p == 0.25


@pytest.mark.parametrize("model", [mlp, cnn])
@pytest.mark.parametrize("name", ["width", "num_classes"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "8", None])
def test_invalid_count_raises(model: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        model(**{name: value})

    assert str(caught.value) == f"{name}: should be an integer of at least 1, got {value!r}."


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, float("nan"), "0.1"])
def test_invalid_dropout_raises(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        cnn(dropout=value)

    assert str(caught.value) == f"dropout: should be a number in [0, 1), got {value!r}."


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8, 8), (1, 3, 8), (1, 8, 3), (0, 8, 8)])
def test_invalid_or_too_small_image_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        cnn(input_shape=shape)

    expected = "(C, H, W) with H and W of at least 4"
    assert str(caught.value) == f"input_shape: should be {expected}, got {shape!r}."


@pytest.mark.parametrize("shape", [(), (0,), (1, -8)])
def test_empty_input_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        mlp(input_shape=shape)

    assert str(caught.value) == f"input_shape: should be positive sizes, got {shape!r}."
