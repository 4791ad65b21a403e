"""Trainings of two processes: a hook of rank 1 requests to stop. Started by test_ranks.py.

python ranks.py DIRECTORY

The ranks are forks with the variables of torchrun: Lightning itself would import everything again in the second
process, for each training, which takes most of the time.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Hook, HookBus
from hookbus.bridge import Bridge

DATA = TensorDataset(torch.arange(24.0))


class StopOnRankOne(Hook):
    def after_train_iter(self, run: Any) -> None:
        if run.ranks.rank == 1 and run.iters_done == 3:
            run.request_stop("enough")


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.model(batch[0][:, None] / 24).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train_with_trainer(bus: HookBus, directory: Path) -> tuple[Bridge, int]:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
    )
    bridge = bus.attach(trainer, work_dir=directory / "run")
    trainer.fit(Module(), DataLoader(DATA, batch_size=2), DataLoader(DATA, batch_size=2))
    return bridge, trainer.global_step


def train_with_fabric(bus: HookBus, directory: Path) -> tuple[Bridge, int]:
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    original = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(original, torch.optim.SGD(original.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(DATA, batch_size=2))
    bridge = bus.attach(fabric, model=model, optimizer=optimizer, work_dir=directory / "run")
    state, steps = {"model": model, "hookbus": bridge}, 0
    with bridge.train(epochs=3) as run:  # type: ignore[attr-defined]
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in enumerate(loader):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                optimizer.zero_grad()
                fabric.backward(model(batch[0][:, None] / 24).square().mean())
                optimizer.step()
                steps += 1
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
                if run.should_stop_epoch:
                    break
            bus.emit("after_train_epoch")
        fabric.save(directory / "last.ckpt", state)
    return bridge, steps


def train_rank(rank: int, port: int, directory: Path) -> None:
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    results = {}
    for name, train in {"trainer": train_with_trainer, "fabric": train_with_fabric}.items():
        bridge, steps = train(HookBus([StopOnRankOne()]), directory / name)
        run = bridge.active_run
        results[name] = {
            "outcome": run.outcome,
            "iters": run.iters_done,
            "steps": steps,
            "reasons": run.stop_reasons,
        }
    (directory / f"rank_{rank}.json").write_text(json.dumps(results))


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ends the other rank if one fails.
    start_processes(train_rank, (port, Path(sys.argv[1])), nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
