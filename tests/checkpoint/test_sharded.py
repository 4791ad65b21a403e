"""Tests of generations: atomic writes, loading with and without sharding, and detection of corruption."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.checkpoint import CheckpointStore, atomic_files
from hookbus.checkpoint.generations import read_manifest, verify_generation
from hookbus.checkpoint.load import load_file, load_on_meta
from hookbus.checkpoint.sharded import read_generation, write_generation
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.sharding import is_sharded
from hookbus.errors import CheckpointCorruptedError, CheckpointError
from tests.checkpoints import find_latest_checkpoint
from tests.crashes import kill_at_each_operation
from tests.sharded_models import (
    WEIGHT,
    build_checkpoint,
    build_sharding,
    single_process_group,
    write_sharded_checkpoint,
)


@pytest.fixture(autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with single_process_group(tmp_path_factory.mktemp("group")):
        yield


class TestGeneration:
    def test_generation_is_loaded_through_its_reference_with_full_tensors(self, tmp_path: Path) -> None:
        loaded = read_checkpoint(write_sharded_checkpoint(tmp_path))

        assert torch.equal(loaded["state_dict"]["a/b%"], WEIGHT)
        assert torch.equal(loaded["state_dict"]["mean"], torch.ones(2))
        assert loaded["hooks"]["ema"]["averaged"][1:] == [1.5, "text"]
        assert loaded.keys() == build_checkpoint().keys()

    def test_generation_is_loaded_by_its_directory(self, tmp_path: Path) -> None:
        write_sharded_checkpoint(tmp_path)

        assert torch.equal(read_checkpoint(tmp_path / "generation_1")["state_dict"]["a/b%"], WEIGHT)

    def test_generation_is_loaded_with_the_sharding_of_the_caller(self, tmp_path: Path) -> None:
        loaded = read_checkpoint(write_sharded_checkpoint(tmp_path), sharding=build_sharding())
        weight = loaded["state_dict"]["a/b%"]

        assert is_sharded(weight)
        assert torch.equal(weight.full_tensor(), WEIGHT)
        assert not is_sharded(loaded["state_dict"]["mean"])

    def test_generation_without_a_device_is_loaded_on_the_cpu(self, tmp_path: Path) -> None:
        loaded = read_checkpoint(write_sharded_checkpoint(tmp_path), map_location=None)

        assert torch.equal(loaded["state_dict"]["a/b%"], WEIGHT)

    def test_tensor_at_two_paths_is_stored_once(self, tmp_path: Path) -> None:
        loaded = read_checkpoint(write_sharded_checkpoint(tmp_path))

        assert loaded["hooks"]["ema"]["averaged"][0] is loaded["state_dict"]["a/b%"]
        stored = sum(path.stat().st_size for path in (tmp_path / "generation_1").glob("*.distcp"))
        assert stored < 2 * (stored - WEIGHT.nbytes)  # the overhead of the format exceeds the data

    def test_metadata_of_a_generation_contains_meta_tensors(self, tmp_path: Path) -> None:
        weight = load_on_meta(write_sharded_checkpoint(tmp_path))["state_dict"]["a/b%"]

        assert (weight.device.type, tuple(weight.shape)) == ("meta", (7, 5))

    def test_metadata_is_loaded_without_the_shards(self, tmp_path: Path) -> None:
        write_sharded_checkpoint(tmp_path)
        for path in (tmp_path / "generation_1").glob("*.distcp"):
            path.unlink()
        loaded = read_generation(tmp_path / "generation_1", map_location="meta")

        assert loaded.keys() == build_checkpoint().keys()
        assert loaded["state_dict"]["a/b%"].device.type == "meta"

    def test_manifest_contains_the_run_and_the_world_size(self, tmp_path: Path) -> None:
        write_sharded_checkpoint(tmp_path, 4)
        manifest = read_manifest(tmp_path / "generation_4")

        assert (manifest["generation"], manifest["run"], manifest["processes"]) == (4, "a-run", 1)
        assert set(manifest["files"]) == {"metadata.json", "__0_0.distcp", "checkpoint.pth"}

    def test_every_dtype_is_preserved(self, tmp_path: Path) -> None:
        dtypes = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
        tensors = {str(dtype): build_sharding().distribute(torch.tensor([0, 1, 1]).to(dtype)) for dtype in dtypes}
        write_generation(tmp_path, {**build_checkpoint(), "state_dict": tensors}, 1, Collectives())
        loaded = read_checkpoint(tmp_path / "generation_1")["state_dict"]

        for dtype in dtypes:
            assert torch.equal(loaded[str(dtype)], torch.tensor([0, 1, 1]).to(dtype))
            assert loaded[str(dtype)].dtype == dtype


class TestCorruption:
    @pytest.mark.parametrize("name", ["metadata.json", "__0_0.distcp", "checkpoint.pth", "manifest.json"])
    def test_corruption_of_any_file_is_detected_and_an_older_checkpoint_used(self, tmp_path: Path, name: str) -> None:
        write_sharded_checkpoint(tmp_path, 1, "epoch_1.pth")
        path = write_sharded_checkpoint(tmp_path, 2, "epoch_2.pth")
        content = bytearray((tmp_path / "generation_2" / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "generation_2" / name).write_bytes(content)

        with pytest.raises(CheckpointCorruptedError, match=f"generation_2.*{name}"):
            read_checkpoint(path)
        loaded = find_latest_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded[0].name == "epoch_1.pth"
        assert name in loaded[2][0]

    @pytest.mark.parametrize("name", ["metadata.json", "__0_0.distcp", "checkpoint.pth", "manifest.json"])
    def test_missing_file_is_detected(self, tmp_path: Path, name: str) -> None:
        path = write_sharded_checkpoint(tmp_path)
        (tmp_path / "generation_1" / name).unlink()

        with pytest.raises(CheckpointCorruptedError, match=name):
            read_checkpoint(path)

    def test_exchanged_generations_are_detected(self, tmp_path: Path) -> None:
        path = write_sharded_checkpoint(tmp_path, 1)
        write_sharded_checkpoint(tmp_path, 2, "epoch_2.pth")
        shutil.rmtree(tmp_path / "generation_1")
        (tmp_path / "generation_2").rename(tmp_path / "generation_1")

        with pytest.raises(CheckpointCorruptedError, match="not the generation that was saved under this name"):
            read_checkpoint(path)

    def test_reference_copied_alone_is_reported_with_the_directory(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        copy = shutil.copy(write_sharded_checkpoint(tmp_path), tmp_path / "elsewhere")
        shutil.copy(tmp_path / "epoch_1.pth.json", tmp_path / "elsewhere")

        with pytest.raises(CheckpointError, match=r"its tensors are in generation_1, which does not exist\. Copy"):
            read_checkpoint(copy)

    def test_reference_outside_the_directory_is_rejected(self, tmp_path: Path) -> None:
        write_sharded_checkpoint(tmp_path / "other")
        pointer = {"generation": {"directory": "../other/generation_1", "manifest": ""}}
        write_checkpoint(tmp_path / "x" / "epoch_1.pth", pointer, 1)

        with pytest.raises(CheckpointCorruptedError, match="invalid reference to a generation"):
            read_checkpoint(tmp_path / "x" / "epoch_1.pth")


class TestFailedSave:
    def test_failed_save_leaves_no_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_sharded_checkpoint(tmp_path)
        before = sorted(tmp_path.rglob("*"))

        def raise_disk_full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        for target in (
            "hookbus.checkpoint.sharded.fsync",
            "hookbus.checkpoint.sharded.atomic_write",
            "hookbus.checkpoint.generations.write_json",
            "os.rename",
        ):
            with monkeypatch.context() as patch:
                patch.setattr(target, raise_disk_full)
                with pytest.raises(CheckpointError, match="could not be written: .*No space left"):
                    write_generation(tmp_path, build_checkpoint(), 2, Collectives())
            assert sorted(tmp_path.rglob("*")) == before

    def test_failure_in_torch_is_a_checkpoint_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(CheckpointError, match="could not be written: .*NotADirectoryError"):
            write_generation(tmp_path / "file", build_checkpoint(), 1, Collectives())

    def test_existing_generation_is_not_replaced(self, tmp_path: Path) -> None:
        write_sharded_checkpoint(tmp_path)

        with pytest.raises(CheckpointError, match="generation_1 could not be written: .*not empty"):
            write_generation(tmp_path, build_checkpoint(WEIGHT + 1), 1, Collectives())
        verify_generation(tmp_path / "generation_1")
        assert torch.equal(read_checkpoint(tmp_path / "epoch_1.pth")["state_dict"]["a/b%"], WEIGHT)


def test_generation_is_fsynced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(descriptor: int) -> None:
        # torch fsyncs its files as well, through descriptors for writing, but before they are complete.
        is_flush = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        trace.append(("flush" if is_flush else "fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def traced_rename(source: Any, target: Any) -> None:
        trace.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    write_generation(tmp_path, build_checkpoint(), 1, Collectives())

    renamed = trace.index(("rename", str(tmp_path / "generation_1")))
    before = {Path(path).name for operation, path in trace[:renamed] if operation == "flush"}
    assert {"metadata.json", "__0_0.distcp"} <= before
    assert any(name.startswith(".tmp-") for name in before), "the directory is fsynced as well"
    assert trace[renamed + 1 :] == [("flush", str(tmp_path))]


@pytest.mark.slow
@pytest.mark.timeout(300)  # about 40 processes, sequentially
def test_kill_at_any_time_leaves_the_newest_referenced_generation(tmp_path: Path) -> None:
    original, folder = tmp_path / "original", tmp_path / "folder"
    atomic_files.add_link(write_sharded_checkpoint(original), original / "last.pth")
    differences: set[float] = set()

    def save_again() -> None:
        path = write_sharded_checkpoint(folder, 2, "epoch_2.pth", weight=WEIGHT + 1)
        atomic_files.add_link(path, folder / "last.pth")
        atomic_files.remove(folder / "epoch_1.pth")
        CheckpointStore(folder, "a-run").remove_unreferenced()

    def check_and_reset() -> None:
        if folder.exists():
            loaded = find_latest_checkpoint(folder)
            assert loaded is not None
            difference = (loaded[1]["state_dict"]["a/b%"] - WEIGHT).unique().tolist()
            differences.update(difference)
            assert len(difference) == 1
            atomic_files.remove_temporary_files(folder, "a-run")
            atomic_files.remove_orphaned_sidecars(folder, "a-run")
            CheckpointStore(folder, "a-run").remove_unreferenced()
            files = sorted(folder.glob("*.pth"))
            generations = {str(load_file(path)["generation"]["directory"]) for path in files}
            sidecars = {f"{path.name}.json" for path in files}
            assert {path.name for path in folder.iterdir()} == {path.name for path in files} | generations | sidecars
            shutil.rmtree(folder)
        shutil.copytree(original, folder)

    assert kill_at_each_operation(save_again, check_and_reset) > 20
    assert differences == {0.0, 1.0}


def test_temporary_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    generation = write_sharded_checkpoint(tmp_path).parent / "generation_1"
    shutil.copytree(generation, tmp_path / atomic_files.make_temporary_name("a-run"))
    (tmp_path / f".tmp-a-run-{'0' * 32}").symlink_to(tmp_path / "generation_1")
    atomic_files.remove_temporary_files(tmp_path, "a-run")

    assert [path.is_symlink() for path in tmp_path.glob(".tmp*")] == [True]
    verify_generation(tmp_path / "generation_1")
