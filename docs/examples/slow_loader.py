"""Scanned digits on a simulated disk that takes three milliseconds per sample."""

import time
from dataclasses import replace

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from hookbus import Splits
from hookbus_zoo import digits


class SlowDiskDataset(Dataset[tuple[Tensor, ...]]):
    def __init__(self, images: TensorDataset) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.003)
        sample: tuple[Tensor, ...] = self.images[index]
        return sample


def slow_digits() -> Splits:
    splits = digits()
    return replace(splits, train=SlowDiskDataset(splits.train))
