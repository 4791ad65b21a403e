"""A small engine of Ignite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ignite.engine import Engine, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import MeanAbsoluteError
from torch import nn

from hookbus import HookBus
from hookbus_ignite.bridge import IgniteBridge


def attach(bus: HookBus, trainer: Engine, **options: Any) -> IgniteBridge:
    """Return an attached bridge, also if the package is not installed."""
    bridge = IgniteBridge(bus, trainer, **options)
    bridge.attach()
    return bridge


def pairs(values: Sequence[float]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of one sample and the target 0."""
    return [(torch.tensor([[value]]), torch.zeros(1, 1)) for value in values]


class Toy:
    """Trainer of one weight, whose gradient is the sum of the batch.

    Attributes:
        model: The model.
        optimizer: SGD without momentum and with the learning rate 1.
        trainer: The engine.
        evaluator: Evaluator with the metric "error": the mean of |weight * value|.
        data: Batches of an epoch.
    """

    def __init__(self, values: Sequence[float] = (1.0, 2.0), **options: Any) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.trainer = create_supervised_trainer(self.model, self.optimizer, lambda y_pred, y: y_pred.sum(), **options)
        self.evaluator = create_supervised_evaluator(self.model, {"error": MeanAbsoluteError()})
        self.data = pairs(values)

    @property
    def weight(self) -> float:
        """The weight of the model."""
        return float(self.model.weight.detach())

    def attach(self, bus: HookBus, **options: Any) -> IgniteBridge:
        """Attach a bus to the trainer."""
        return attach(bus, self.trainer, **{"model": self.model, "optimizer": self.optimizer, **options})
