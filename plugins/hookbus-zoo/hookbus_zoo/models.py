"""Small classifiers of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from hookbus.errors import ConfigError

__all__ = ["cnn", "mlp"]

DIGITS_SHAPE = (1, 8, 8)


def mlp(width: int = 64, input_shape: Sequence[int] = DIGITS_SHAPE, num_classes: int = 10) -> nn.Sequential:
    """Two hidden layers with ReLU.

    Args:
        width: units of each hidden layer.
        input_shape: of one picture, without the batch.
        num_classes: outputs.

    Returns:
        A module that makes scores of shape (batch, num_classes) of pictures of shape (batch, *input_shape).

    Raises:
        ConfigError: an argument does not hold.
    """
    _check(width=width, num_classes=num_classes)
    _require(len(input_shape) > 0 and min(input_shape) > 0, "input_shape", input_shape, "positive sizes")
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


def cnn(
    width: int = 16, dropout: float = 0.1, input_shape: Sequence[int] = DIGITS_SHAPE, num_classes: int = 10
) -> nn.Sequential:
    """Two convolutions with batch norm, each followed by pooling that halves the picture.

    Args:
        width: channels of the first convolution; the second has twice as many.
        dropout: the share of features that is dropped before the last layer; from 0 to below 1.
        input_shape: (channels, height, width) of one picture; height and width at least 4.
        num_classes: outputs.

    Returns:
        A module that makes scores of shape (batch, num_classes) of pictures of shape (batch, *input_shape).

    Raises:
        ConfigError: an argument does not hold.
    """
    _check(width=width, num_classes=num_classes)
    _require(isinstance(dropout, (int, float)) and 0 <= dropout < 1, "dropout", dropout, "a number from 0 to below 1")
    fits = len(input_shape) == 3 and input_shape[0] > 0 and min(input_shape[1:]) >= 4
    _require(fits, "input_shape", input_shape, "(channels, height, width), with height and width of at least 4")
    channels, height, breadth = input_shape
    features = 2 * width * (height // 4) * (breadth // 4)
    return nn.Sequential(
        *_block(channels, width),
        *_block(width, 2 * width),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(features, num_classes),
    )


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)


def _check(**counts: int) -> None:
    for name, value in counts.items():
        _require(isinstance(value, int) and value >= 1, name, value, "a whole number of at least 1")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError([f"{name}: should be {wanted}, but it is {value!r}."])
