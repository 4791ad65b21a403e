"""Example datasets: scanned digits and CIFAR-10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hookbus import Splits
from hookbus.errors import ConfigError, LoopError

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation per channel of the 50,000 training images, scaled to [0, 1]."""


def digits(val_share: float = 0.2, seed: int = 0) -> Splits:
    """Load the 1,797 scanned digits that ship with scikit-learn.

    Args:
        val_share: Fraction of the images in the validation split, between 0 and 1.
        seed: Seed of the random split.

    Returns:
        Splits of float32 images of shape (1, 8, 8) in [0, 1], with labels from 0 to 9.

    Raises:
        ConfigError: If `val_share` leaves the training or the validation split empty.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    # A generator of its own, so that loading the data does not change the global RNG state of the training.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    val_size = _count_val(val_share, len(labels))
    val, train = order[:val_size], order[val_size:]
    return Splits(
        train=_build_digits(images[train], labels[train]),
        val=_build_digits(images[val], labels[val]),
        input_shape=(1, 8, 8),
        num_classes=10,
    )


def _build_digits(images: Tensor, labels: Tensor) -> TensorDataset:
    """Return a dataset with the class names in `classes`, as torchvision's datasets have."""
    dataset: Any = TensorDataset(images, labels)
    dataset.classes = [str(digit) for digit in range(10)]
    return dataset  # type: ignore[no-any-return]


def _count_val(share: float, total: int) -> int:
    """Return the number of validation images, such that both splits are nonempty."""
    if isinstance(share, (int, float)) and 0 < share < 1 and 0 < round(total * share) < total:
        return round(total * share)
    raise ConfigError(
        f"val_share: should be a number between 0 and 1 that leaves at least one of the {total:,} images in each "
        f"split, got {share!r}."
    )


def cifar10(root: str = "data", download: bool = False) -> Splits:
    """Load CIFAR-10 with torchvision; training images are randomly cropped (padding 4) and flipped.

    Args:
        root: Directory that contains `cifar-10-batches-py`, the directory in the archive of the dataset.
        download: Download the dataset if it does not exist in `root`.

    Returns:
        Splits of normalized float32 images of shape (3, 32, 32), with labels from 0 to 9.

    Raises:
        LoopError: If torchvision is not installed or incompatible with torch, or the dataset does not exist or is
            corrupted.
    """
    transforms, datasets = _import_torchvision()
    normalize = [transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    pipelines = {True: transforms.Compose([*augment, *normalize]), False: transforms.Compose(normalize)}
    try:
        train, val = (
            datasets.CIFAR10(root, train=is_train, download=download, transform=pipeline)
            for is_train, pipeline in pipelines.items()
        )
    except (RuntimeError, OSError) as error:  # torchvision raises RuntimeError for missing or corrupted files
        raise LoopError(_missing_data_message(Path(root), download, error)) from error
    return Splits(train=train, val=val, input_shape=(3, 32, 32), num_classes=10)


def _import_torchvision() -> tuple[Any, Any]:
    try:
        from torchvision import datasets, transforms
    except ModuleNotFoundError as error:
        raise LoopError(
            f"cifar10 requires {error.name}, which is not installed. Run: pip install torchvision"
        ) from error
    except Exception as error:  # a torchvision for another torch version raises various errors on import
        raise LoopError(
            f"cifar10 requires torchvision, and the installed version is incompatible with torch {torch.__version__} "
            f"({type(error).__name__}: {error}). Install the matching version from the package index of torch."
        ) from error
    return transforms, datasets


def _missing_data_message(root: Path, download: bool, error: Exception) -> str:
    cause = str(error).rstrip(".")
    if download:
        return (
            f"CIFAR-10 could not be downloaded to {root.absolute()} ({type(error).__name__}: {cause}). Try again, or "
            "set `dataset.root` to a directory that contains cifar-10-batches-py."
        )
    return (
        f"CIFAR-10 is missing or corrupted in {root.absolute()}. Set `dataset.download: true` to download it, or set "
        "`dataset.root` to the directory that contains cifar-10-batches-py."
    )
