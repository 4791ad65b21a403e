"""Training with MMEngine on two ranks, a script for test_ranks.py. Prints one line of JSON per rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import SyncBuffersHook as ForeignSyncBuffersHook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hookbus import Hook, HookBus, Run
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook
from hookbus_sync import SyncBuffersHook

DIRECTORY, SCENARIO = Path(sys.argv[1]), sys.argv[2]
# By default, MMEngine passes a device, which a model on the CPU does not have.
WRAPPER = {"type": "MMDistributedDataParallel", "device_ids": None, "broadcast_buffers": False}


class Net(BaseModel):
    """Linear regression of normalized inputs, whose statistics differ between the ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.layer = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, inputs: Tensor, mode: str = "tensor") -> Any:
        """Return the outputs, or the loss of a training iteration."""
        outputs = self.layer(self.norm(inputs))
        return {"loss": (outputs - inputs.sum(1, keepdim=True)).square().mean()} if mode == "loss" else outputs


class StopOnRank1(Hook):
    """Stop after the fifth iteration, on rank 1 only."""

    def after_train_iter(self, run: Run) -> None:
        """Request the stop."""
        if run.iter == 4 and get_rank() == 1:
            run.request_stop("rank 1")


class Inputs(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Inputs by the name of the argument of the model."""

    def __init__(self) -> None:
        self.data = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.data[index]}


def build_runner(name: str, epochs: int, **arguments: Any) -> Runner:
    """Return a Runner whose epochs have 4 iterations on each rank."""
    model = Net()
    return Runner(
        model,
        work_dir=str(DIRECTORY / name),
        train_dataloader={
            "dataset": Inputs(),
            "batch_size": 2,
            "collate_fn": {"type": "default_collate"},
            "sampler": {"type": "DefaultSampler", "shuffle": True, "seed": 0},
        },
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        optim_wrapper=OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)),
        launcher="pytorch",
        cfg={"model_wrapper_cfg": WRAPPER},
        log_level="ERROR",
        experiment_name=uuid4().hex,  # MMEngine warns of two runners with the same name
        default_scope="mmengine",
        **arguments,
    )


def to_list(tensors: Any) -> list[float]:
    """Return all elements of tensors."""
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors]).tolist()


def train(name: str, *hooks: Hook, epochs: int = 3, **arguments: Any) -> dict[str, Any]:
    """Train, and return what the test compares."""
    runner = build_runner(name, epochs, **arguments)
    ema = EMAHook(momentum=0.5, warm_up=0)
    bus = HookBus([ema, JsonlHook(interval=1), *hooks])
    bus.attach(runner, work_dir=DIRECTORY / name / "hookbus")
    runner.train()
    averages, model, run = ema.average.averaged(), runner.model.module, bus.current
    assert averages is not None
    return {
        "wrapped": isinstance(runner.model, DistributedDataParallel),
        "iters": run.iters_done,
        "outcome": run.outcome,
        "stops": run.stop_reasons,
        "weights": to_list(model.parameters()),
        "averages": to_list(averages[key] for key, _ in model.named_parameters()),
        "mean": to_list([model.norm.running_mean]),
        "variance": to_list([model.norm.running_var]),
    }


def collect() -> dict[str, Any]:
    """Return the results of the trainings of a scenario."""
    if SCENARIO == "resume":
        return {
            "whole": train("whole"),
            "stopped": train("parts", StopOnRank1()),
            "resumed": train("parts", resume=True),
        }
    return {
        "plain": train("plain", epochs=1),
        "native": train("native", epochs=1, custom_hooks=[ForeignSyncBuffersHook()]),
        "ours": train("ours", SyncBuffersHook(), epochs=1),
    }


# As `launcher="pytorch"` does it, which requires CUDA in doing so.
torch.distributed.init_process_group("gloo")
result = collect()
sys.stdout.write("RESULT " + json.dumps({"rank": get_rank(), "world_size": get_world_size(), **result}) + "\n")
torch.distributed.destroy_process_group()
