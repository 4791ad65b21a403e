"""Tests of loading shards: without executing code, and only from their directory."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from hookbus.checkpoint.sharded import read_generation
from hookbus.errors import CheckpointCorruptedError
from tests.sharded_models import single_process_group, write_sharded_checkpoint


@pytest.fixture(autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with single_process_group(tmp_path_factory.mktemp("group")):
        yield


class Malicious:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_loading_metadata_executes_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sharded_checkpoint(tmp_path)
    (tmp_path / "generation_1/.metadata").write_bytes(pickle.dumps(Malicious()))

    with pytest.raises(CheckpointCorruptedError, match=r"posix\.mkdir, and loading that would execute code"):
        read_generation(tmp_path / "generation_1")
    assert not (tmp_path / "was-run").exists()


def test_loading_non_tensor_items_executes_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sharded_checkpoint(tmp_path)
    evil: dict[str, Any] = {"state_dict/a%2Fb%25": Malicious()}
    save(evil, storage_writer=FileSystemWriter(tmp_path / "evil"))
    shutil.copytree(tmp_path / "evil", tmp_path / "generation_1", dirs_exist_ok=True)

    with pytest.raises(CheckpointCorruptedError, match="BytesStorageMetadata"):
        read_generation(tmp_path / "generation_1")
    assert not (tmp_path / "was-run").exists()


def test_file_outside_the_directory_is_rejected(tmp_path: Path) -> None:
    write_sharded_checkpoint(tmp_path)
    path = tmp_path / "generation_1/.metadata"
    metadata = pickle.loads(path.read_bytes())
    for index, info in metadata.storage_data.items():
        metadata.storage_data[index] = replace(info, relative_path="../generation_2/__0_0.distcp")
    path.write_bytes(pickle.dumps(metadata))

    with pytest.raises(CheckpointCorruptedError, match="refers to a file outside its directory"):
        read_generation(tmp_path / "generation_1")
