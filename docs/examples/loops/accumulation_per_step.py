"""Accumulate gradients: one iteration per optimizer step, of four batches each."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
inputs = torch.randn(96, 4)
loader = DataLoader(inputs, batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

bus = HookBus(
    [CheckpointHook(interval=2, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=model, optimizer=optimizer, epochs=3, seed=0, work_dir="runs/per_step", resume="auto"
) as run:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        batches = iter(run.batches(loader))
        for i, first in batches:
            parts = [first, *(next(batches)[1] for _ in range(3))]
            bus.emit("before_train_iter", batch_idx=i // 4, batch=torch.cat(parts))
            optimizer.zero_grad()
            losses = [model(part).square().mean() / 4 for part in parts]
            for loss in losses:
                loss.backward()
            optimizer.step()
            outputs = {"loss": sum(losses).detach()}
            bus.emit(
                "after_train_iter", batch_idx=i // 4, batch=torch.cat(parts), outputs=outputs
            )
        bus.emit("after_train_epoch")
