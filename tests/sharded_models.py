"""Sharded checkpoints of a process group with one process; only the number of processes differs from a real run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from hookbus.checkpoint.sharded import write_generation
from hookbus.checkpoint.state import write_checkpoint
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.process_group import destroy_group
from hookbus.distributed.sharding import ShardingSpec

WEIGHT = torch.arange(35.0).reshape(7, 5)


@contextmanager
def single_process_group(directory: Path) -> Iterator[None]:
    """Context manager for a gloo process group with a world size of 1."""
    # A file store needs no port, so concurrent test runs cannot collide.
    dist.init_process_group("gloo", store=dist.FileStore(str(directory / "store"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        destroy_group()


def build_sharding() -> ShardingSpec:
    """Return a layout that shards dimension 0 over a mesh of one process."""
    return ShardingSpec(init_device_mesh("cpu", (1,)), (Shard(0),))


def build_checkpoint(weight: torch.Tensor = WEIGHT, run: str = "a-run") -> dict[str, Any]:
    """Return a checkpoint that contains the same sharded tensor in two places."""
    sharded = build_sharding().distribute(weight)
    return {
        "meta": {"schema": 1, "step": 3},
        "state_dict": {"a/b%": sharded, "mean": torch.ones(2)},
        "hooks": {"ema": {"averaged": [sharded, 1.5, "text"]}},
        "loop": {"id": run},
    }


def write_sharded_checkpoint(
    folder: Path, generation: int = 1, name: str = "epoch_1.pth", **checkpoint_options: Any
) -> Path:
    """Write a generation and the checkpoint file that refers to it, and return the path of the file."""
    pointer = write_generation(folder, build_checkpoint(**checkpoint_options), generation, Collectives())
    write_checkpoint(folder / name, pointer, generation)
    return folder / name
