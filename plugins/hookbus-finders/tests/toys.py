"""A model that exceeds its memory at a batch size, and a training of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, Run, Trainer
from hookbus.checkpoint import get_run_state
from hookbus.testing import fingerprint

SAMPLES = 48


class Net(nn.Module):
    """Model with dropout and batch norm, of which a training step fails if the batch is larger than the capacity."""

    def __init__(self, capacity: int | None = None, error: BaseException | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.capacity, self.error = capacity, error or torch.OutOfMemoryError("the device is full")
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.sizes.append(len(inputs))
            if self.capacity is not None and len(inputs) > self.capacity:
                raise self.error
        output: Tensor = self.layers(inputs)
        return output


class Observer(Hook):
    """Record the batches, the means of the epochs, and the state at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[float] = []
        self.means: list[dict[str, float]] = []
        self.state: Any = None

    def after_train_iter(self, batch: Any) -> None:
        self.inputs.append(float(batch[0].sum()))

    def after_train_epoch(self, metrics: Any) -> None:
        self.means.append(dict(metrics))

    def after_train(self, run: Run) -> None:
        parts = [run.model, run.optimizer, *run.schedulers.values(), *([run.scaler] if run.scaler else [])]
        state = copy.deepcopy(get_run_state(run))
        del state["loop"]["id"], state["meta"], state["hooks"]
        state["loop"]["clock"] = {name: value for name, value in state["loop"]["clock"].items() if "second" not in name}
        self.state = fingerprint([[part.state_dict() for part in parts], state])


def build_loader(batch_size: int = 6, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    return DataLoader(
        TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=batch_size, **{"shuffle": True, **options}
    )


def build_trainer(*hooks: Any, net: Net | None = None, lr: float = 0.01, **options: Any) -> Trainer:
    net = net or Net()
    layers = net.layers
    groups = [
        {"params": layers[:-1].parameters(), "lr": lr / 10},
        {"params": layers[-1].parameters(), "lr": lr},
    ]
    settings: dict[str, Any] = {
        "train_loader": build_loader(),
        "epochs": 2,
        "work_dir": None,
        "default_hooks": False,
        "seed": 0,
        "device": "cpu",
        **options,
    }
    return Trainer(net, torch.optim.AdamW(groups), nn.functional.cross_entropy, hooks=hooks, **settings)
