"""Tests of consolidate: function and command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from typer.testing import CliRunner

from hookbus._cli.app import app
from hookbus._cli.consolidate import consolidate
from hookbus.checkpoint.sharded import write_generation
from hookbus.checkpoint.sidecars import read_sidecar, written_by
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.process_group import destroy_group
from hookbus.distributed.sharding import ShardingSpec
from hookbus.errors import CheckpointCorruptedError, CheckpointError

WEIGHT = torch.arange(6.0).reshape(3, 2)


@pytest.fixture
def generation(tmp_path: Path) -> Path:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    sharded = ShardingSpec(init_device_mesh("cpu", (1,)), (Shard(0),)).distribute(WEIGHT)
    checkpoint = {"meta": {"step": 7}, "state_dict": {"weight": sharded}, "loop": {"id": "a-run"}}
    pointer = write_generation(tmp_path, checkpoint, 7, Collectives())
    write_checkpoint(tmp_path / "last.pth", pointer, 7)
    destroy_group()
    return tmp_path / "generation_7"


def test_file_is_written_next_to_the_directory(generation: Path) -> None:
    path = consolidate(generation)
    plain = torch.load(path, weights_only=True)

    assert path == generation.with_name("generation_7.pth")
    assert plain["meta"] == {"step": 7}
    assert torch.equal(plain["state_dict"]["weight"], WEIGHT)
    assert torch.equal(read_checkpoint(path)["state_dict"]["weight"], WEIGHT)
    sidecar = read_sidecar(path)
    assert sidecar is not None
    assert sidecar.generation == 7
    assert written_by(path, "a-run")


def test_pointer_file_is_accepted(generation: Path, tmp_path: Path) -> None:
    path = consolidate(tmp_path / "last.pth", tmp_path / "out" / "model.pth")

    assert path == tmp_path / "out" / "model.pth"
    assert torch.equal(torch.load(path, weights_only=True)["state_dict"]["weight"], WEIGHT)


def test_existing_file_is_not_overwritten(generation: Path, tmp_path: Path) -> None:
    consolidate(generation)

    with pytest.raises(CheckpointError, match=r"generation_7\.pth already exists\. Move it"):
        consolidate(generation)
    with pytest.raises(CheckpointError, match="is already a single file"):
        consolidate(tmp_path / "generation_7.pth")


def test_corrupted_generation_is_an_error(generation: Path) -> None:
    (generation / "__0_0.distcp").write_bytes(b"")

    with pytest.raises(CheckpointCorruptedError, match=r"__0_0\.distcp: corrupted"):
        consolidate(generation)
    assert not generation.with_name("generation_7.pth").exists()


def test_unwritable_path_is_named(generation: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match=r"model\.pth could not be written"):
        consolidate(generation, tmp_path / "file" / "model.pth")


def test_command_prints_the_written_file(generation: Path) -> None:
    done = CliRunner().invoke(app, ["consolidate", str(generation)])
    path = generation.with_name("generation_7.pth")

    assert done.exit_code == 0
    assert done.output == f"Wrote {path}, {path.stat().st_size:,} bytes.\n"


def test_command_with_a_missing_generation_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["consolidate", str(tmp_path / "generation_1")])

    assert done.exit_code == 2
    assert "file does not exist" in done.output
