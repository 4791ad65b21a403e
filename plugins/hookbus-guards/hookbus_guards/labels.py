"""Are the labels classes that there are?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["wrong_labels"]


def wrong_labels(targets: Any, num_classes: int, ignore_index: int = -100) -> list[int]:
    """The labels that are no class, sorted. One read of the device where there is none.

    Args:
        targets: of any shape; what is not a tensor of whole numbers holds no labels.
        num_classes: classes are 0 to num_classes - 1.
        ignore_index: a label that means nothing.
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        return []
    wrong = ((targets < 0) | (targets >= num_classes)) & (targets != ignore_index)
    return sorted(targets[wrong].unique().tolist()) if bool(wrong.any()) else []
