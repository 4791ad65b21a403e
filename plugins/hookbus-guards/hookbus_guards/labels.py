"""Validation of class labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["invalid_labels"]


def invalid_labels(targets: Any, num_classes: int, ignore_index: int = -100) -> list[int]:
    """Return the labels outside the class range.

    Args:
        targets: Integer tensor of any shape; any other value contains no labels.
        num_classes: Number of classes; valid labels are 0 to `num_classes` - 1.
        ignore_index: Label that is always valid.

    Returns:
        Sorted distinct invalid labels.
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        return []
    invalid = ((targets < 0) | (targets >= num_classes)) & (targets != ignore_index)
    # `any` first: valid batches cost one device synchronization instead of a masked copy.
    return sorted(targets[invalid].unique().tolist()) if bool(invalid.any()) else []
