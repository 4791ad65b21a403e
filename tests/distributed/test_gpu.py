"""Distributed training with one GPU per process and NCCL, on all GPUs of the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

TRAINING = """
    import json, os, toys
    trainer = toys.trainer(epochs=5, **json.loads(os.environ["SETTINGS"]))
    trainer.fit()
    report({"weights": toys.flat_weights(trainer.model), "device": str(trainer.device)})
"""

COLLECTIVES = """
    import torch
    from hookbus.distributed.process_group import local_device
    from hookbus.distributed.process_collectives import get_collectives
    device = local_device(torch.device("cuda"))
    ranks = get_collectives(device)
    total = ranks.all_reduce("numbers", torch.full((3,), ranks.rank + 1.0, device=device))
    report({"sum": total.tolist(), "device": total.device.type, "ranks": ranks.all_gather("ranks", ranks.rank)})
"""


def train(launch: Launch, ranks: int, **settings: Any) -> dict[int, Any]:
    """Train the toy model and return the reports by rank."""
    return launch(TRAINING, ranks=ranks, torchrun=True, environment={"SETTINGS": json.dumps(settings)}).reports


def test_weights_match_the_same_number_of_cpu_ranks(launch: Launch) -> None:
    count = torch.cuda.device_count()
    on_cpu, on_gpu = train(launch, count), train(launch, count, device="cuda")

    assert sorted(report["device"].partition(":")[0] for report in on_gpu.values()) == ["cuda"] * count
    for rank in range(count):
        assert on_gpu[rank]["weights"] == pytest.approx(on_cpu[rank]["weights"], rel=0, abs=1e-9)


def test_gpu_tensors_are_reduced_on_the_gpu_and_objects_are_gathered(launch: Launch) -> None:
    count = torch.cuda.device_count()
    reports = launch(COLLECTIVES, ranks=count, torchrun=True).reports

    expected = {"sum": [count * (count + 1) / 2] * 3, "device": "cuda", "ranks": list(range(count))}
    assert reports == dict.fromkeys(range(count), expected)
