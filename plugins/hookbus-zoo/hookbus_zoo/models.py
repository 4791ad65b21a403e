"""Small image classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from hookbus.errors import ConfigError

DIGITS_SHAPE = (1, 8, 8)


def mlp(width: int = 64, input_shape: Sequence[int] = DIGITS_SHAPE, num_classes: int = 10) -> nn.Sequential:
    """Build an MLP with two hidden layers and ReLU.

    Args:
        width: Number of units of each hidden layer.
        input_shape: Shape of one image, without the batch dimension.
        num_classes: Number of classes.

    Returns:
        A module that maps images of shape (N, *input_shape) to logits of shape (N, num_classes).

    Raises:
        ConfigError: If an argument is invalid.
    """
    _check_counts(width=width, num_classes=num_classes)
    _check_argument(len(input_shape) > 0 and min(input_shape) > 0, "input_shape", input_shape, "positive sizes")
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
    """Build a CNN with two blocks of convolution, batch norm, ReLU and max pooling.

    Args:
        width: Number of channels of the first convolution; the second has twice as many.
        dropout: Dropout probability before the last layer, at least 0 and less than 1.
        input_shape: Shape (C, H, W) of one image, with H and W at least 4.
        num_classes: Number of classes.

    Returns:
        A module that maps images of shape (N, *input_shape) to logits of shape (N, num_classes).

    Raises:
        ConfigError: If an argument is invalid.
    """
    _check_counts(width=width, num_classes=num_classes)
    _check_argument(isinstance(dropout, (int, float)) and 0 <= dropout < 1, "dropout", dropout, "a number in [0, 1)")
    is_valid = len(input_shape) == 3 and input_shape[0] > 0 and min(input_shape[1:]) >= 4
    _check_argument(is_valid, "input_shape", input_shape, "(C, H, W) with H and W of at least 4")
    channels, *image_size = input_shape
    features = 2 * width * math.prod(side // 4 for side in image_size)
    return nn.Sequential(
        *_build_block(channels, width),
        *_build_block(width, 2 * width),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(features, num_classes),
    )


def _build_block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # Without a bias: the batch norm subtracts it again.
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        _check_argument(isinstance(value, int) and value >= 1, name, value, "an integer of at least 1")


def _check_argument(is_valid: bool, name: str, value: object, expected: str) -> None:
    if not is_valid:
        raise ConfigError(f"{name}: should be {expected}, got {value!r}.")
