"""A small training loop with Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from hookbus import HookBus, Run
from hookbus_accelerate.bridge import AccelerateBridge


def attach(bus: HookBus, accelerator: Accelerator, **options: Any) -> AccelerateBridge:
    """Return an attached bridge, also if the package is not installed."""
    bridge = AccelerateBridge(bus, accelerator, **options)
    bridge.attach()
    return bridge


@dataclass
class Loop:
    """Loop over constant batches of one weight, whose gradient is the batch.

    Attributes:
        accelerator: The accelerator.
        bridge: Bridge of the accelerator.
        batches: Batches of an epoch.
        lr: Learning rate of SGD without momentum.
        before_run: Function that is called after the preparation and before the run.
        in_run: Function that is called with the run before its first epoch.
        train: Arguments of `bridge.train`.
    """

    accelerator: Accelerator
    bridge: AccelerateBridge
    batches: list[float] = field(default_factory=lambda: [1.0, 2.0, 4.0, 8.0])
    lr: float = 1.0
    before_run: Callable[[], object] = lambda: None
    in_run: Callable[[Run], object] = lambda run: None
    train: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=1.0)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)

    @property
    def weight(self) -> float:
        """The weight of the model."""
        return float(self.accelerator.unwrap_model(self.model).weight.detach())

    @property
    def scheduler_steps(self) -> int:
        """Number of steps of the scheduler."""
        return int(self.scheduler.scheduler.last_epoch)

    def __call__(self, epochs: int = 1) -> Run:
        """Train, and return the run."""
        bus, accelerator = self.bridge.bus, self.accelerator
        self.before_run()
        objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        with self.bridge.train(**objects, epochs=epochs, **self.train) as run:
            self.in_run(run)
            for _ in run.epochs():
                for i, value in run.batches(self.batches):
                    batch = torch.tensor([[value]])
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    with accelerator.accumulate(self.model):
                        loss = self.model(batch).sum()
                        accelerator.backward(loss)
                        self.optimizer.step()
                        self.scheduler.step()
                        self.optimizer.zero_grad()
                    bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()})
        return run
