"""Processes with a GPU each, which talk to each other through NCCL: as many as there are."""

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
    answer({"weights": toys.numbers(trainer.model), "device": str(trainer.device)})
"""

GATEWAY = """
    import torch
    from hookbus.distributed import local_device
    from hookbus.ranks import join
    device = local_device(torch.device("cuda"))
    ranks = join(device)
    found = ranks.reduce("numbers", torch.full((3,), ranks.rank + 1.0, device=device))
    answer({"sum": found.tolist(), "device": found.device.type, "ranks": ranks.gather("ranks", ranks.rank)})
"""


def trained(launch: Launch, ranks: int, **settings: Any) -> dict[int, Any]:
    return launch(TRAINING, ranks=ranks, environment={"SETTINGS": json.dumps(settings)}).answers


def test_they_train_what_as_many_processes_of_the_cpu_train(launch: Launch) -> None:
    count = torch.cuda.device_count()
    on_cpu, on_gpu = trained(launch, count), trained(launch, count, device="cuda")

    assert sorted(each["device"].partition(":")[0] for each in on_gpu.values()) == ["cuda"] * count
    for rank in range(count):
        assert on_gpu[rank]["weights"] == pytest.approx(on_cpu[rank]["weights"], rel=0, abs=1e-9)


def test_tensors_of_the_gpu_are_reduced_there_and_values_travel_beside_them(launch: Launch) -> None:
    count = torch.cuda.device_count()
    answers = launch(GATEWAY, ranks=count).answers

    whole = {"sum": [count * (count + 1) / 2] * 3, "device": "cuda", "ranks": list(range(count))}
    assert answers == dict.fromkeys(range(count), whole)
