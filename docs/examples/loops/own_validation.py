"""Perform the validation in the loop, and report its numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
inputs = torch.randn(48, 4)
loader = DataLoader(inputs[:32], batch_size=4, shuffle=True)
held_out = inputs[32:]
model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

hooks = [
    CheckpointHook(interval=3, by_epoch=False, best_metric="val/loss"),
    EarlyStoppingHook(monitor="val/loss", patience=3),
    JsonlHook(interval=1),
]
bus = HookBus(hooks)
with bus.run(
    model=model, optimizer=optimizer, epochs=5, seed=0, work_dir="runs/own", resume="auto"
) as run:
    for _ in run.epochs():
        bus.emit("before_train_epoch")
        for i, batch in run.batches(loader):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            bus.emit(
                "after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()}
            )
        bus.emit("after_train_epoch")
        if not run.epoch_complete:
            break
        bus.emit("before_val")
        model.eval()
        with torch.no_grad():
            metrics = {"val/loss": float(model(held_out).square().mean())}
        model.train()
        bus.emit("after_val", metrics=metrics)
