"""Helpers shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hookbus import HOOKS, Hook


@contextmanager
def restored_registry() -> Iterator[None]:
    """Context manager that removes the classes that are registered inside it."""
    before = dict(HOOKS)
    try:
        yield
    finally:
        HOOKS.clear()
        HOOKS.update(before)


class LossModel(nn.Module):
    """Model whose loss is the mean of its inputs, plus 0 times its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean() + 0 * self.weight.sum()


class Recorder(Hook):
    """Record the logged scalars as (step, values), and the logged images by tag."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars: list[tuple[int, dict[str, Any]]] = []
        self.images: dict[str, Any] = {}

    def log_scalars(self, values: Any, step: int) -> None:
        self.scalars.append((step, dict(values)))

    def log_images(self, tag: str, images: Any) -> None:
        self.images[tag] = images

    def get_curve(self, name: str) -> list[tuple[int, Any]]:
        """Return (step, value) of each record of one name."""
        return [(step, values[name]) for step, values in self.scalars if name in values]
