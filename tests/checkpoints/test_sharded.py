"""Generations: written whole or not at all, read spread or whole, and any damage seen."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.checkpoints import files
from hookbus.checkpoints.generations import read_manifest, verify_generation
from hookbus.checkpoints.reading import outline_of
from hookbus.checkpoints.sharded import read_generation, write_generation
from hookbus.checkpoints.sweeping import sweep
from hookbus.errors import CheckpointDamaged, CheckpointError
from hookbus.model.layouts import is_spread
from hookbus.ranks import Ranks
from hookbus.state import find_newest, read_checkpoint, write_checkpoint
from tests.dying import deaths
from tests.spread import WEIGHT, checkpoint, layout, one_process, written


@pytest.fixture(autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_process(tmp_path_factory.mktemp("group")):
        yield


class TestAGeneration:
    def test_is_read_through_its_name_with_whole_tensors(self, tmp_path: Path) -> None:
        found = read_checkpoint(written(tmp_path))

        assert torch.equal(found["state_dict"]["a/b%"], WEIGHT)
        assert torch.equal(found["state_dict"]["mean"], torch.ones(2))
        assert found["hooks"]["ema"]["averaged"][1:] == [1.5, "text"]
        assert found.keys() == checkpoint().keys()

    def test_is_read_by_its_directory_as_well(self, tmp_path: Path) -> None:
        written(tmp_path)

        assert torch.equal(read_checkpoint(tmp_path / "generation_1")["state_dict"]["a/b%"], WEIGHT)

    def test_is_read_spread_as_the_reader_wants_it(self, tmp_path: Path) -> None:
        found = read_checkpoint(written(tmp_path), layout=layout())
        weight = found["state_dict"]["a/b%"]

        assert is_spread(weight)
        assert torch.equal(weight.full_tensor(), WEIGHT)
        assert not is_spread(found["state_dict"]["mean"])

    def test_stores_a_tensor_once_that_is_in_two_places(self, tmp_path: Path) -> None:
        found = read_checkpoint(written(tmp_path))

        assert found["hooks"]["ema"]["averaged"][0] is found["state_dict"]["a/b%"]
        stored = sum(path.stat().st_size for path in (tmp_path / "generation_1").glob("*.distcp"))
        assert stored < 2 * (stored - WEIGHT.nbytes)  # what torch.save adds is more than the numbers

    def test_has_an_outline(self, tmp_path: Path) -> None:
        weight = outline_of(written(tmp_path))["state_dict"]["a/b%"]

        assert (weight.device.type, tuple(weight.shape)) == ("meta", (7, 5))

    def test_is_outlined_without_its_numbers(self, tmp_path: Path) -> None:
        written(tmp_path)
        for path in (tmp_path / "generation_1").glob("*.distcp"):
            path.unlink()
        found = read_generation(tmp_path / "generation_1", map_location="meta")

        assert found.keys() == checkpoint().keys()
        assert found["state_dict"]["a/b%"].device.type == "meta"

    def test_says_who_wrote_it(self, tmp_path: Path) -> None:
        written(tmp_path, 4)
        manifest = read_manifest(tmp_path / "generation_4")

        assert (manifest["generation"], manifest["run"], manifest["processes"]) == (4, "a-run", 1)
        assert set(manifest["files"]) == {".metadata", "__0_0.distcp", "checkpoint.pth"}

    def test_keeps_every_type_of_number(self, tmp_path: Path) -> None:
        kinds = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
        tensors = {str(kind): layout().spread(torch.tensor([0, 1, 1]).to(kind)) for kind in kinds}
        write_generation(tmp_path, {**checkpoint(), "state_dict": tensors}, 1, Ranks())
        found = read_checkpoint(tmp_path / "generation_1")["state_dict"]

        for kind in kinds:
            assert torch.equal(found[str(kind)], torch.tensor([0, 1, 1]).to(kind))
            assert found[str(kind)].dtype == kind


class TestDamage:
    @pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "checkpoint.pth", "manifest.json"])
    def test_of_any_file_is_seen_and_an_older_checkpoint_is_used(self, tmp_path: Path, name: str) -> None:
        written(tmp_path, 1, "epoch_1.pth")
        path = written(tmp_path, 2, "epoch_2.pth")
        content = bytearray((tmp_path / "generation_2" / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "generation_2" / name).write_bytes(content)

        with pytest.raises(CheckpointDamaged, match=f"generation_2.*{name}"):
            read_checkpoint(path)
        found = find_newest(tmp_path)
        assert found is not None
        assert found[0].name == "epoch_1.pth"
        assert name in found[2][0]

    @pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "checkpoint.pth", "manifest.json"])
    def test_by_a_missing_file_is_seen(self, tmp_path: Path, name: str) -> None:
        path = written(tmp_path)
        (tmp_path / "generation_1" / name).unlink()

        with pytest.raises(CheckpointDamaged, match=name):
            read_checkpoint(path)

    def test_by_exchanged_generations_is_seen(self, tmp_path: Path) -> None:
        path = written(tmp_path, 1)
        written(tmp_path, 2, "epoch_2.pth")
        shutil.rmtree(tmp_path / "generation_1")
        (tmp_path / "generation_2").rename(tmp_path / "generation_1")

        with pytest.raises(CheckpointDamaged, match="not the generation that was saved under this name"):
            read_checkpoint(path)

    def test_by_a_name_that_was_copied_alone_says_what_to_copy(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        copy = shutil.copy(written(tmp_path), tmp_path / "elsewhere")
        shutil.copy(tmp_path / "epoch_1.pth.json", tmp_path / "elsewhere")

        with pytest.raises(CheckpointError, match=r"its tensors are in generation_1, which is not here\. Copy"):
            read_checkpoint(copy)

    def test_by_a_name_that_leads_elsewhere_is_refused(self, tmp_path: Path) -> None:
        written(tmp_path / "other")
        pointer = {"generation": {"directory": "../other/generation_1", "manifest": ""}}
        write_checkpoint(tmp_path / "x" / "epoch_1.pth", pointer, 1)

        with pytest.raises(CheckpointDamaged, match="which is no generation"):
            read_checkpoint(tmp_path / "x" / "epoch_1.pth")


class TestASaveThatFails:
    def test_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        written(tmp_path)
        before = sorted(tmp_path.rglob("*"))

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        for place in (
            "hookbus.checkpoints.shards.flush",
            "hookbus.checkpoints.sharded.commit",
            "hookbus.checkpoints.generations.write_json",
            "os.rename",
        ):
            with monkeypatch.context() as patch:
                patch.setattr(place, full)
                with pytest.raises(CheckpointError, match="could not be written: .*No space left"):
                    write_generation(tmp_path, checkpoint(), 2, Ranks())
            assert sorted(tmp_path.rglob("*")) == before

    def test_in_torch_is_an_error_like_any_other(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(CheckpointError, match="could not be written: .*NotADirectoryError"):
            write_generation(tmp_path / "file", checkpoint(), 1, Ranks())

    def test_never_replaces_a_generation(self, tmp_path: Path) -> None:
        written(tmp_path)

        with pytest.raises(CheckpointError, match="generation_1 could not be written: .*not empty"):
            write_generation(tmp_path, checkpoint(WEIGHT + 1), 1, Ranks())
        verify_generation(tmp_path / "generation_1")
        assert torch.equal(read_checkpoint(tmp_path / "epoch_1.pth")["state_dict"]["a/b%"], WEIGHT)


def test_all_of_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        is_ours = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY  # torch's own comes too early
        seen.append(("flush" if is_ours else "fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_rename(source: Any, target: Any) -> None:
        seen.append(("rename", str(target)))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write_generation(tmp_path, checkpoint(), 1, Ranks())

    named = seen.index(("rename", str(tmp_path / "generation_1")))
    before = {Path(path).name for kind, path in seen[:named] if kind == "flush"}
    assert {".metadata", "__0_0.distcp"} <= before
    assert any(name.startswith(".tmp-") for name in before), "the directory itself, with the names in it"
    assert seen[named + 1 :] == [("flush", str(tmp_path))]


@pytest.mark.slow
@pytest.mark.timeout(300)  # some forty processes, one after the other
def test_a_death_at_any_moment_leaves_the_newest_generation_that_was_named(tmp_path: Path) -> None:
    sound, folder = tmp_path / "sound", tmp_path / "folder"
    files.link(written(sound), sound / "last.pth")
    seen: set[float] = set()

    def save_again() -> None:
        path = written(folder, 2, "epoch_2.pth", weight=WEIGHT + 1)
        files.link(path, folder / "last.pth")
        files.remove(folder / "epoch_1.pth")
        sweep(folder, "a-run")

    def look_and_go_back() -> None:
        if folder.exists():
            found = find_newest(folder)
            assert found is not None
            difference = (found[1]["state_dict"]["a/b%"] - WEIGHT).unique().tolist()
            seen.update(difference)
            assert len(difference) == 1
            files.remove_leftovers(folder, "a-run")
            assert list(folder.glob(".tmp*")) == []
            shutil.rmtree(folder)
        shutil.copytree(sound, folder)

    assert deaths(save_again, look_and_go_back) > 20
    assert seen == {0.0, 1.0}


def test_what_a_process_that_died_has_left_is_cleared_away(tmp_path: Path) -> None:
    shutil.copytree(written(tmp_path).parent / "generation_1", tmp_path / files.temporary_name("a-run"))
    (tmp_path / f".tmp-a-run-{'0' * 32}").symlink_to(tmp_path / "generation_1")
    files.remove_leftovers(tmp_path, "a-run")

    assert [path.is_symlink() for path in tmp_path.glob(".tmp*")] == [True]
    verify_generation(tmp_path / "generation_1")
