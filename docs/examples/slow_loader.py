"""The scanned digits, from a disk that takes three milliseconds for each of them."""

import time
from dataclasses import replace

from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from hookbus import Splits
from hookbus_zoo import digits


class FromSlowDisk(Dataset[tuple[Tensor, ...]]):
    def __init__(self, pictures: TensorDataset) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.003)
        picture: tuple[Tensor, ...] = self.pictures[index]
        return picture


def slow_digits() -> Splits:
    found = digits()
    return replace(found, train=FromSlowDisk(found.train))
