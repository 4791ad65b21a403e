"""Training with SWA on two ranks, whose statistics are printed. Run by `test_ranks.py`."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import Trainer
from hookbus.distributed import to_full_tensors
from hookbus_ema import EMAHook, SWAHook


def main(strategy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    inputs = torch.arange(8.0)[:, None]
    swa = SWAHook(swa_epoch_start=1, swa_lrs=0.05)
    trainer = Trainer(
        model,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        nn.functional.mse_loss,
        DataLoader(TensorDataset(inputs, 2 * inputs), 2),
        DataLoader(TensorDataset(inputs, 2 * inputs), 2),
        epochs=2,
        hooks=[EMAHook(momentum=0.5, warm_up=0), swa],
        distributed=strategy,
        default_hooks=False,
        work_dir=None,
        device="cpu",
    )
    run = trainer.fit()
    averaged = to_full_tensors(run.weights.averaged("swa"))
    result = {name: value.flatten().tolist() for name, value in averaged.items()}
    sys.stdout.write("RESULT " + json.dumps({**result, "results": dict(run.metrics.results)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
