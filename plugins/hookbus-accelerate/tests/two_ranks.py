"""Training with Accelerate on two ranks, a script for test_ranks.py. Prints one line of JSON per rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from hookbus import Hook, HookBus, Run
from hookbus_accelerate.bridge import AccelerateBridge
from hookbus_ema import EMAHook

DIRECTORY = Path(sys.argv[1])


class StopOnRank1(Hook):
    """Stop after the third iteration, on rank 1 only."""

    def after_train_iter(self, run: Run) -> None:
        """Request the stop."""
        if run.iter == 2 and accelerator.process_index == 1:
            run.request_stop("rank 1")


def train(epochs: int) -> Run:
    """Train, save after each epoch, and return the run."""
    with bridge.train(model=model, optimizer=optimizer, epochs=epochs, seed=0) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                with accelerator.accumulate(model):
                    loss = model(batch).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": loss.detach()})
            bus.emit("after_train_epoch")
            if run.epoch_complete:
                accelerator.save_state(str(DIRECTORY / f"epoch_{run.epochs_done}"))
    return run


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
bus = HookBus([EMAHook(momentum=0.5, warm_up=0), StopOnRank1()])
bridge: Any = AccelerateBridge(bus, accelerator)
bridge.attach()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
data = torch.randn(24, 3)
model, optimizer, loader = accelerator.prepare(
    net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), DataLoader(data, batch_size=2, shuffle=True)
)
run = train(2)
with run.weights.applied():
    averages = [parameter.tolist() for parameter in net.parameters()]
weights = [parameter.tolist() for parameter in net.parameters()]
counts = {"iters": run.iters_done, "steps": run.steps_done, "epochs": run.epochs_done, "outcome": run.outcome}
result = {"rank": accelerator.process_index, "world_size": accelerator.num_processes, **counts}
sys.stdout.write(
    "RESULT " + json.dumps({**result, "stops": run.stop_reasons, "weights": weights, "averages": averages}) + "\n"
)
accelerator.end_training()
