"""Data and model of the scripts: a small model in float64 and synthetic points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Trainer


def data(count: int = 64) -> TensorDataset:
    """Return `count` labeled samples with 4 features."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def loader(batch_size: int = 8, count: int = 64, **options: Any) -> DataLoader[Any]:
    """Return a shuffling loader of `data(count)`."""
    return DataLoader(data(count), batch_size=batch_size, shuffle=True, **options)


def net() -> nn.Module:
    """Return a two-layer classifier with seeded weights."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an SGD optimizer with momentum, whose state has to be part of a checkpoint."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trainer(model: nn.Module | None = None, *, batch_size: int = 8, **options: Any) -> Trainer:
    """Return a CPU trainer without default hooks; `options` override its settings."""
    model = model or net()
    settings: dict[str, Any] = {
        "train_loader": loader(batch_size),
        "epochs": 2,
        "work_dir": None,
        "default_hooks": False,
        "device": "cpu",
        "seed": 5,
        **options,
    }
    return Trainer(model, sgd(model), functional.cross_entropy, **settings)


def flat_weights(model: nn.Module) -> list[float]:
    """Return all parameters of a model as one flat list."""
    flat: Tensor = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return flat.tolist()
