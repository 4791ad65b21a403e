"""Accumulate gradients: one iteration per batch, and an optimizer step in every fourth one."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
inputs = torch.randn(40, 4)
loader = DataLoader(inputs, batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

bus = HookBus(
    [CheckpointHook(interval=3, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=model, optimizer=optimizer, epochs=3, seed=0, work_dir="runs/per_batch", resume="auto"
) as run:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            if run.iters_done % 4 == 0:
                optimizer.zero_grad()
            loss = model(batch).square().mean()
            (loss / 4).backward()
            if run.iters_done % 4 == 3:
                optimizer.step()
            bus.emit(
                "after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()}
            )
        bus.emit("after_train_epoch")
