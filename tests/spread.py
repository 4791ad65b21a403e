"""Generations in one process, over which alone the tensors are spread: all but the number of processes is real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from hookbus.checkpoints.sharded import write_generation
from hookbus.model.layouts import Layout
from hookbus.ranks import Ranks
from hookbus.state import write_checkpoint

WEIGHT = torch.arange(35.0).reshape(7, 5)


@contextmanager
def one_process(directory: Path) -> Iterator[None]:
    """A group of one process, which exists as long as this lasts."""
    dist.init_process_group("gloo", store=dist.FileStore(str(directory / "store"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def layout() -> Layout:
    return Layout(init_device_mesh("cpu", (1,)), (Shard(0),))


def checkpoint(weight: torch.Tensor = WEIGHT, run: str = "a-run") -> dict[str, Any]:
    spread = layout().spread(weight)
    return {
        "meta": {"schema": 1, "step": 3},
        "state_dict": {"a/b%": spread, "mean": torch.ones(2)},
        "hooks": {"ema": {"averaged": [spread, 1.5, "text"]}},
        "loop": {"id": run},
    }


def written(folder: Path, generation: int = 1, name: str = "epoch_1.pth", **how: Any) -> Path:
    """A generation, and a file that names it."""
    pointer = write_generation(folder, checkpoint(**how), generation, Ranks())
    write_checkpoint(folder / name, pointer, generation)
    return folder / name
