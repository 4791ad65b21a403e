"""Train with LBFGS, whose step evaluates a closure several times."""

import torch
from torch import nn

from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook
from hookbus_logger import JsonlHook

torch.manual_seed(0)
inputs = torch.randn(64, 4)
targets = inputs.square().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


bus = HookBus(
    [CheckpointHook(interval=2, by_epoch=False, save_best=False), JsonlHook(interval=1)]
)
with bus.run(
    model=model, optimizer=optimizer, epochs=12, work_dir="runs/lbfgs", resume="auto"
) as run:
    for epoch in run.epochs():
        bus.emit("before_train_epoch")
        for _ in range(run.iters_done, epoch + 1):
            bus.emit("before_train_iter", batch=inputs)
            loss = optimizer.step(closure)
            bus.emit("after_train_iter", batch=inputs, outputs={"loss": loss.detach()})
        bus.emit("after_train_epoch")
