"""Data sets: scanned digits, and CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hookbus import Splits
from hookbus.errors import ConfigError, LoopError

__all__ = ["cifar10", "digits"]

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)
"""Of each channel over the 50,000 training pictures, scaled from 0 to 1."""


def digits(val_share: float = 0.2, seed: int = 0) -> Splits:
    """Load the 1,797 scanned digits that ship with scikit-learn.

    Args:
        val_share: the share of them to validate on, between 0 and 1.
        seed: decides which ones.

    Returns:
        Pictures of shape (1, 8, 8) as float32 from 0 to 1, with labels from 0 to 9.

    Raises:
        ConfigError: `val_share` leaves no picture to train on, or none to validate on.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.as_tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out = _count_of(val_share, len(labels))
    val, train = order[:held_out], order[held_out:]
    return Splits(
        train=_digits_of(images[train], labels[train]),
        val=_digits_of(images[val], labels[val]),
        input_shape=(1, 8, 8),
        num_classes=10,
    )


def _digits_of(images: Tensor, labels: Tensor) -> TensorDataset:
    """A data set that says what its classes are called, as torchvision's do."""
    found: Any = TensorDataset(images, labels)
    found.classes = [str(digit) for digit in range(10)]
    return found  # type: ignore[no-any-return]


def _count_of(share: float, there: int) -> int:
    """How many of the pictures that are there make up a share, so that some are left on both sides."""
    if isinstance(share, (int, float)) and 0 < share < 1 and 0 < round(there * share) < there:
        return round(there * share)
    raise ConfigError(
        [
            f"val_share: should be a number between 0 and 1 that leaves some of the {there:,} on both sides, "
            f"but it is {share!r}."
        ]
    )


def cifar10(root: str = "data", download: bool = False) -> Splits:
    """Load CIFAR-10 through torchvision, with the usual crop and flip for training.

    Args:
        root: the directory that holds `cifar-10-batches-py`, as the archive of the data unpacks.
        download: fetch the data if it is not there.

    Returns:
        Normalised pictures of shape (3, 32, 32) as float32, with labels from 0 to 9.

    Raises:
        LoopError: torchvision is not installed, or does not fit torch, or the data is not there.
    """
    transforms, datasets = _torchvision()
    normalize = [transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    pipelines = {True: transforms.Compose([*augment, *normalize]), False: transforms.Compose(normalize)}
    try:
        train, val = (
            datasets.CIFAR10(root, train=part, download=download, transform=pipeline)
            for part, pipeline in pipelines.items()
        )
    except (RuntimeError, OSError) as error:
        raise LoopError(_no_data(Path(root), download, error)) from error
    return Splits(train=train, val=val, input_shape=(3, 32, 32), num_classes=10)


def _torchvision() -> tuple[Any, Any]:
    try:
        from torchvision import datasets, transforms
    except ModuleNotFoundError as error:
        raise LoopError(f"cifar10 needs {error.name}, which is not installed. Run: pip install torchvision") from error
    except Exception as error:  # built for another torch, it fails in ways of its own
        raise LoopError(
            f"cifar10 needs torchvision, and the one that is installed does not work with torch {torch.__version__} "
            f"({type(error).__name__}: {error}). Install the one made for it, from where torch came from."
        ) from error
    return transforms, datasets


def _no_data(root: Path, download: bool, error: Exception) -> str:
    cause = str(error).rstrip(".")
    if download:
        return (
            f"CIFAR-10 could not be fetched into {root.absolute()} ({type(error).__name__}: {cause}). Try again, "
            "or set dataset.root to a directory that holds cifar-10-batches-py."
        )
    return (
        f"CIFAR-10 is not in {root.absolute()}, or damaged. Set dataset.download: true to fetch it, or dataset.root "
        "to the directory that holds cifar-10-batches-py."
    )
