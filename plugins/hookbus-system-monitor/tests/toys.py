"""Training loops for the tests of the hooks."""

import torch
from torch import nn

from hookbus import Hook
from hookbus.trainer.trainer import Trainer

BATCHES = [torch.zeros(4, 2)] * 6


class Writer(Hook):
    """Store all logged scalars."""

    def __init__(self, **settings):
        super().__init__(settings)
        self.written = []

    def log_scalars(self, values, step):
        self.written.append((step, dict(values)))

    @property
    def steps(self):
        return [step for step, _ in self.written]


def train(bus, run, in_iteration=lambda number: None):
    """Run a custom training loop."""
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(BATCHES):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            in_iteration(run.iters_done + 1)
            bus.emit("after_train_iter", batch_idx=i, batch=batch)
        bus.emit("after_train_epoch")


def accumulate(hooks, *, by, in_iteration=lambda: None):
    """Train for one epoch of 6 iterations with an optimizer step every `by` iterations."""
    model = nn.Linear(2, 2)

    def step(model, batch):
        in_iteration()
        return model(batch).sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"epochs": 1, "accumulate": by, "work_dir": None, "default_hooks": False, "hooks": hooks}
    Trainer(model, optimizer, step_fn=step, train_loader=BATCHES, **options).fit()
