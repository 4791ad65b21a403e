"""Tests of the removal of unreferenced generations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hookbus.checkpoint import atomic_files
from hookbus.checkpoint.store import remove_unreferenced
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
    remove_unreferenced(tmp_path, "a-run")

    assert sorted(path.name for path in tmp_path.glob("generation_*")) == ["generation_3", "generation_4"]
    assert list(tmp_path.glob(".*")) == []


def test_generations_of_other_runs_and_without_a_manifest_are_kept(tmp_path: Path) -> None:
    write_sharded_checkpoint(tmp_path, 1, run="other")
    write_sharded_checkpoint(tmp_path, 2, "epoch_2.pth")
    (tmp_path / "generation_2/manifest.json").write_text("{}")
    for path in tmp_path.glob("*.pth"):
        atomic_files.remove(path)
    remove_unreferenced(tmp_path, "a-run")

    assert sorted(path.name for path in tmp_path.glob("generation_*")) == ["generation_1", "generation_2"]


def test_reference_counts_without_a_sidecar_but_not_if_corrupted(tmp_path: Path) -> None:
    for generation in (1, 2):
        write_sharded_checkpoint(tmp_path, generation, f"epoch_{generation}.pth")
        (tmp_path / f"epoch_{generation}.pth.json").unlink()
    (tmp_path / "epoch_2.pth").write_bytes(b"")
    remove_unreferenced(tmp_path, "a-run")

    assert [path.name for path in tmp_path.glob("generation_*")] == ["generation_1"]
