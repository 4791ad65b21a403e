"""Train with Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
inputs = torch.randn(40, 4)
accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.2))
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.AdamW(model.parameters(), lr=0.05),
    DataLoader(inputs, batch_size=4, shuffle=True),
)

bus = HookBus(
    [CheckpointHook(interval=3, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=model, optimizer=optimizer, epochs=3, seed=0, work_dir="runs/accelerate", resume="auto"
) as run:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            bus.emit(
                "after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()}
            )
        bus.emit("after_train_epoch")
