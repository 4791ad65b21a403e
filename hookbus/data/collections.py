"""Size of a batch of any nesting. Without torch, because the clock of a run counts samples by it."""

from __future__ import annotations

from typing import Any

__all__ = ["batch_size"]


def batch_size(batch: Any) -> int:
    """Return the number of samples of a batch: the length of its first tensor, 0 if it contains no tensor.

    Args:
        batch: A tensor of shape (N, ...), a tuple, list or mapping that contains one, or a list of N mappings.
    """
    while True:
        if isinstance(batch, (tuple, list)) and batch:
            if isinstance(batch[0], dict):
                return len(batch)
            batch = batch[0]
        elif isinstance(batch, dict) and batch:
            batch = next(iter(batch.values()))
        else:
            shape = getattr(batch, "shape", None)
            return 0 if shape is None else shape[0] if shape else 1
