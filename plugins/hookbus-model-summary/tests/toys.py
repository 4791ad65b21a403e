"""Small models whose numbers are worked out by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CNN(nn.Module):
    """Convolution (1 to 4 channels, 3 x 3), BatchNorm, and a linear layer with 10 outputs, for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 10))

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.conv(images)))
        return output


def images(count: int = 2) -> Tensor:
    return torch.linspace(-1, 1, count * 64).reshape(count, 1, 8, 8)
