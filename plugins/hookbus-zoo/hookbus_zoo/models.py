"""Small classifiers of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

__all__ = ["cnn", "mlp"]

DIGITS_SHAPE = (1, 8, 8)


def mlp(width: int = 64, input_shape: Sequence[int] = DIGITS_SHAPE, num_classes: int = 10) -> nn.Sequential:
    """Two hidden layers with ReLU.

    Args:
        width: units of each hidden layer.
        input_shape: of one picture, without the batch.
        num_classes: outputs.
    """
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
        dropout: the share of features that is dropped before the last layer.
        input_shape: (channels, height, width) of one picture; height and width at least 4.
        num_classes: outputs.
    """
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
