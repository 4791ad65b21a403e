"""Data sets: scanned digits, and CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from hookbus.data import Splits
from hookbus.errors import LoopError

__all__ = ["cifar10", "digits"]

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def digits(val_share: float = 0.2, seed: int = 0) -> Splits:
    """Load the 1,797 scanned digits that ship with scikit-learn.

    Args:
        val_share: the share of them to validate on, between 0 and 1.
        seed: decides which ones.

    Returns:
        Pictures of shape (1, 8, 8) as float32 from 0 to 1, with labels from 0 to 9.

    Raises:
        ValueError: `val_share` is not between 0 and 1.
    """
    from sklearn.datasets import load_digits

    if not 0 < val_share < 1:
        raise ValueError(f"val_share is {val_share}; it must lie between 0 and 1")
    found = load_digits()
    images = torch.as_tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out = round(len(labels) * val_share)
    val, train = order[:held_out], order[held_out:]
    return Splits(
        train=TensorDataset(images[train], labels[train]),
        val=TensorDataset(images[val], labels[val]),
        input_shape=(1, 8, 8),
        num_classes=10,
    )


def cifar10(root: str = "data", download: bool = False) -> Splits:
    """Load CIFAR-10 through torchvision, with the usual crop and flip for training.

    Args:
        root: the directory that holds the data.
        download: fetch the data if it is not there.

    Returns:
        Normalised pictures of shape (3, 32, 32) as float32, with labels from 0 to 9.

    Raises:
        LoopError: torchvision is not installed, or the data is not there.
    """
    try:
        from torchvision import transforms
        from torchvision.datasets import CIFAR10
    except Exception as error:  # a torchvision that does not fit torch fails in ways of its own
        raise LoopError(
            f"cifar10 needs torchvision, which cannot be imported ({type(error).__name__}: {error}). "
            "Run: pip install torchvision"
        ) from error
    normalize = [transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    try:
        train = CIFAR10(root, train=True, download=download, transform=transforms.Compose([*augment, *normalize]))
        val = CIFAR10(root, train=False, download=download, transform=transforms.Compose(normalize))
    except (RuntimeError, OSError) as error:
        raise LoopError(
            f"CIFAR-10 is not in {Path(root).absolute()}: {error} Set dataset.download: true to fetch it, or "
            "dataset.root to where it is."
        ) from error
    return Splits(train=train, val=val, input_shape=(3, 32, 32), num_classes=10)
