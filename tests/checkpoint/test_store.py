"""Tests of the removal of unreferenced generations."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hookbus.checkpoint import CheckpointStore, atomic_files
from hookbus.checkpoint.generations import verify_generation
from tests.sharded_models import single_process_group, write_sharded_checkpoint


@pytest.fixture(autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with single_process_group(tmp_path_factory.mktemp("group")):
        yield


def test_unreferenced_generations_are_removed(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        write_sharded_checkpoint(tmp_path, generation, "last.pth")
    atomic_files.add_link(tmp_path / "last.pth", tmp_path / "best.pth")
    write_sharded_checkpoint(tmp_path, 4, "last.pth")
    CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    assert sorted(path.name for path in tmp_path.glob("generation_*")) == ["generation_3", "generation_4"]
    assert list(tmp_path.glob(".*")) == []


def test_generations_of_other_runs_and_without_a_manifest_are_kept(tmp_path: Path) -> None:
    write_sharded_checkpoint(tmp_path, 1, run="other")
    write_sharded_checkpoint(tmp_path, 2, "epoch_2.pth")
    (tmp_path / "generation_2/manifest.json").write_text("{}")
    for path in tmp_path.glob("*.pth"):
        atomic_files.remove(path)
    CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    assert sorted(path.name for path in tmp_path.glob("generation_*")) == ["generation_1", "generation_2"]


def test_reference_counts_without_a_sidecar_but_not_if_corrupted(tmp_path: Path) -> None:
    for generation in (1, 2):
        write_sharded_checkpoint(tmp_path, generation, f"epoch_{generation}.pth")
        (tmp_path / f"epoch_{generation}.pth.json").unlink()
    (tmp_path / "epoch_2.pth").write_bytes(b"")
    CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    assert [path.name for path in tmp_path.glob("generation_*")] == ["generation_1"]


def test_generation_that_was_replaced_by_a_link_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    atomic_files.remove(write_sharded_checkpoint(folder, 1))
    (folder / "generation_1").rename(tmp_path / "moved")
    (folder / "generation_1").symlink_to(tmp_path / "moved")
    CheckpointStore(folder, "a-run").remove_unreferenced()

    assert (folder / "generation_1").is_symlink()
    verify_generation(folder / "generation_1")


@pytest.mark.parametrize("calls", [1, 2])
def test_foreign_files_in_a_generation_are_kept(tmp_path: Path, calls: int) -> None:
    atomic_files.remove(write_sharded_checkpoint(tmp_path, 1))
    (tmp_path / "generation_1/notes.txt").write_text("years of work")
    (tmp_path / "generation_1/__0_0.distcp").unlink()
    (tmp_path / "generation_1/__0_0.distcp").symlink_to(tmp_path / "generation_1/notes.txt")
    for _ in range(calls):
        CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    assert sorted(path.name for path in (tmp_path / "generation_1").iterdir()) == ["__0_0.distcp", "notes.txt"]
    assert (tmp_path / "generation_1/notes.txt").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["generation_1"]


def test_generation_of_a_reference_that_cannot_be_read_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sharded_checkpoint(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", raise_io_error)
        CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    verify_generation(tmp_path / "generation_1")


def raise_io_error(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_fifo_with_the_name_of_a_reference_does_not_block(tmp_path: Path) -> None:
    write_sharded_checkpoint(tmp_path, 1)
    os.mkfifo(tmp_path / "epoch_2.pth")
    CheckpointStore(tmp_path, "a-run").remove_unreferenced()

    verify_generation(tmp_path / "generation_1")
