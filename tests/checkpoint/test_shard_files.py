"""Tests of loading shards: without executing code, and only from their directory."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.checkpoint.sharded import read_generation
from hookbus.errors import CheckpointCorruptedError, CheckpointError
from tests.sharded_models import single_process_group, write_sharded_checkpoint


@pytest.fixture(autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with single_process_group(tmp_path_factory.mktemp("group")):
        yield


class Malicious:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def edit_metadata(directory: Path, edit: Callable[[Any], object]) -> None:
    """Change the metadata of a generation."""
    content = json.loads((directory / "metadata.json").read_text())
    edit(content)
    (directory / "metadata.json").write_text(json.dumps(content))


def test_generation_contains_no_pickled_metadata(tmp_path: Path) -> None:
    write_sharded_checkpoint(tmp_path)
    names = {path.name for path in (tmp_path / "generation_1").iterdir()}
    assert names == {"__0_0.distcp", "checkpoint.pth", "manifest.json", "metadata.json"}
    shard = {"offsets": [0, 0], "sizes": [7, 5], "file": "__0_0.distcp", "position": 0}
    metadata = json.loads((tmp_path / "generation_1/metadata.json").read_text())
    shards = metadata["tensors"]["state_dict/a%2Fb%25"].pop("shards")
    assert metadata == {"tensors": {"state_dict/a%2Fb%25": {"dtype": "float32", "size": [7, 5]}}}
    assert [{**shard, "length": entry["length"]} for entry in shards] == shards


def test_pickled_metadata_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sharded_checkpoint(tmp_path)
    (tmp_path / "generation_1/metadata.json").unlink()
    (tmp_path / "generation_1/.metadata").write_bytes(pickle.dumps(Malicious()))

    with pytest.raises(CheckpointCorruptedError, match=r"metadata\.json: No such file or directory"):
        read_generation(tmp_path / "generation_1")
    assert not (tmp_path / "was-run").exists()


def test_loading_shards_executes_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sharded_checkpoint(tmp_path)
    torch.save(Malicious(), tmp_path / "generation_1/__0_1.distcp")
    length = (tmp_path / "generation_1/__0_1.distcp").stat().st_size
    evil = {"file": "__0_1.distcp", "position": 0, "length": length}

    edit_metadata(tmp_path / "generation_1", lambda content: get_shard(content).update(evil))
    with pytest.raises(CheckpointCorruptedError, match="shards cannot be loaded as data"):
        read_generation(tmp_path / "generation_1")
    assert not (tmp_path / "was-run").exists()


def get_tensor(content: Any) -> dict[str, Any]:
    """Return the entry of the only tensor in the metadata."""
    return next(iter(content["tensors"].values()))


def get_shard(content: Any) -> dict[str, Any]:
    """Return the entry of the only shard in the metadata."""
    return get_tensor(content)["shards"][0]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda content: get_shard(content).update(file="../generation_2/__0_0.distcp"), "a string of the form"),
        (lambda content: get_shard(content).update(file="/dev/zero"), "a string of the form"),
        (lambda content: get_shard(content).update(file="__9_0.distcp"), "No such file"),
        (lambda content: get_shard(content).update(position=10**15), "length: expected 140 to -"),
        (lambda content: get_shard(content).update(position=-1), "position: expected an integer from 0"),
        (lambda content: get_shard(content).update(length=10**15), "length: expected 140 to "),
        (lambda content: get_shard(content).update(length=100), "length: expected 140 to "),
        (lambda content: get_shard(content).update(sizes=[7]), "a part of a tensor of size"),
        (lambda content: get_shard(content).update(offsets=[7, 5]), "a part of a tensor of size"),
        (lambda content: get_shard(content).update(sizes=[6, 5]), "expected 35 elements"),
        (lambda content: get_tensor(content).update(size=[10**15, 5]), "expected 5000000000000000 elements"),
        (lambda content: get_tensor(content).update(size=[10**30]), "an integer from 0"),
        (lambda content: get_tensor(content).update(shards=[]), "expected 35 elements"),
        (lambda content: get_tensor(content)["shards"].append(get_shard(content)), "expected 35 elements"),
        (lambda content: get_tensor(content).update(dtype="float"), "a dtype of torch"),
        (lambda content: get_tensor(content).update(dtype="int64"), "the shape or dtype differs"),
        (lambda content: get_tensor(content).update(dtype="load"), "a dtype of torch"),
        (lambda content: get_tensor(content).update(dtype=None), "a string"),
        (lambda content: content.update(tensors={}), "expected a tensor in checkpoint.pth and metadata.json"),
        (lambda content: content.update(tensors=[]), "tensors: expected a mapping"),
        (lambda content: content.clear(), "tensors: expected a value"),
    ],
)
def test_invalid_metadata_is_reported_with_its_key(tmp_path: Path, edit: Callable[[Any], object], reason: str) -> None:
    write_sharded_checkpoint(tmp_path)
    edit_metadata(tmp_path / "generation_1", edit)
    with pytest.raises(CheckpointCorruptedError, match=reason):
        read_generation(tmp_path / "generation_1")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"tensors": NaN}'])
def test_other_content_of_the_metadata_is_corrupted(tmp_path: Path, data: bytes) -> None:
    write_sharded_checkpoint(tmp_path)
    (tmp_path / "generation_1/metadata.json").write_bytes(data)
    with pytest.raises(CheckpointCorruptedError, match=r"metadata\.json: (invalid JSON|content: expected a mapping)"):
        read_generation(tmp_path / "generation_1")


@pytest.mark.parametrize("name", ["metadata.json", "__0_0.distcp", "checkpoint.pth"])
def test_fifo_among_the_shards_is_refused_without_blocking(tmp_path: Path, name: str) -> None:
    write_sharded_checkpoint(tmp_path)
    (tmp_path / "generation_1" / name).unlink()
    os.mkfifo(tmp_path / "generation_1" / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_generation(tmp_path / "generation_1")
