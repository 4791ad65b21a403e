"""Directories of generations and their manifests, without any tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoints.files import hash_file
from hookbus.checkpoints.generations import (
    directory_of,
    generation_named,
    generations_in,
    is_generation,
    publish,
    read_manifest,
    remove_generation,
    seal,
    verify_generation,
)
from hookbus.errors import CheckpointDamaged, CheckpointError


def sealed(folder: Path, generation: int = 1, content: bytes = b"numbers", **facts: Any) -> tuple[Path, str]:
    """A generation of one file, and the hash of its manifest."""
    directory = folder / directory_of(generation)
    directory.mkdir(parents=True)
    (directory / "a.distcp").write_bytes(content)
    manifest = seal(directory, {"a.distcp": (len(content), hash_file(directory / "a.distcp"))}, **facts)
    return directory, manifest


def test_directories_are_known_by_their_numbers(tmp_path: Path) -> None:
    for name in ("generation_12", "generation_3", "generation_x", "generation_4.old", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "generation_5").write_text("")

    assert dict(generations_in(tmp_path)) == {12: tmp_path / "generation_12", 3: tmp_path / "generation_3"}
    assert dict(generations_in(tmp_path / "not there")) == {}
    assert not is_generation(tmp_path / "generation_3")
    assert is_generation(sealed(tmp_path / "x")[0])


def test_a_manifest_says_what_was_sealed(tmp_path: Path) -> None:
    directory, manifest = sealed(tmp_path, run="r", processes=2)
    said = read_manifest(directory)

    assert said["run"] == "r"
    assert said["processes"] == 2
    assert said["files"] == {"a.distcp": [7, hash_file(directory / "a.distcp")]}
    assert manifest == hash_file(directory / "manifest.json")
    verify_generation(directory, manifest)


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    directory, manifest = sealed(tmp_path, run="r")
    path = directory / "manifest.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointDamaged):
            verify_generation(directory, manifest)


@pytest.mark.parametrize("content", [b"number", b"numberz", b"numbers!", b""])
def test_a_file_that_is_not_as_it_was_sealed_is_named(tmp_path: Path, content: bytes) -> None:
    directory, _ = sealed(tmp_path)
    (directory / "a.distcp").write_bytes(content)

    with pytest.raises(CheckpointDamaged, match=r"a\.distcp: damaged: its bytes"):
        verify_generation(directory)


def test_a_manifest_of_another_generation_is_refused(tmp_path: Path) -> None:
    directory, _ = sealed(tmp_path, run="r")
    _, other = sealed(tmp_path, 2, run="s")

    with pytest.raises(CheckpointDamaged, match="not the generation that was saved under this name"):
        verify_generation(directory, other)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"check": 1}', "null"])
def test_what_is_no_manifest_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(CheckpointDamaged, match="manifest.json is missing or damaged"):
        read_manifest(tmp_path)


class TestAName:
    def test_leads_to_the_directory_beside_it(self, tmp_path: Path) -> None:
        directory, _ = sealed(tmp_path)

        assert generation_named(tmp_path / "x.pth", {"generation": {"directory": "generation_1"}}) == directory

    def test_of_an_ordinary_checkpoint_leads_nowhere(self, tmp_path: Path) -> None:
        assert generation_named(tmp_path / "x.pth", {"state_dict": {}}) is None
        assert generation_named(tmp_path / "x.pth", {"generation": 3}) is None

    def test_that_leads_to_nothing_says_what_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="generation_1, which is not here. Copy that directory as well"):
            generation_named(tmp_path / "x.pth", {"generation": {"directory": "generation_1"}})

    @pytest.mark.parametrize("name", ["../generation_1", "/generation_1", "generation_1/..", "x", "", None, 3])
    def test_that_leads_elsewhere_is_refused(self, tmp_path: Path, name: object) -> None:
        with pytest.raises(CheckpointDamaged, match="which is no generation of a checkpoint"):
            generation_named(tmp_path / "x.pth", {"generation": {"directory": name}})


def test_a_generation_is_published_once(tmp_path: Path) -> None:
    first, _ = sealed(tmp_path / "one")
    second, _ = sealed(tmp_path / "two", content=b"others")
    publish(first, tmp_path / "generation_1")

    with pytest.raises(OSError, match="not empty"):
        publish(second, tmp_path / "generation_1")
    assert (tmp_path / "generation_1/a.distcp").read_bytes() == b"numbers"


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_like_a_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = sealed(tmp_path)

    def dies(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hookbus.checkpoints.generations.shutil.rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        remove_generation(directory, "a")

    assert dict(generations_in(tmp_path)) == {}
    assert [path.name.startswith(".tmp-") for path in tmp_path.iterdir()] == [True]
