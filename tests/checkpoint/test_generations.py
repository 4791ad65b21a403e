"""Tests of generation directories and manifests, without tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hookbus.checkpoint.atomic_files import write_json
from hookbus.checkpoint.generations import (
    commit_generation,
    get_directory_name,
    is_generation,
    iter_generations,
    read_manifest,
    remove_generation,
    resolve_pointer,
    verify_generation,
    write_manifest,
)
from hookbus.checkpoint.sidecars import checksum, hash_file
from hookbus.errors import CheckpointCorruptedError, CheckpointError


def make_generation(folder: Path, generation: int = 1, content: bytes = b"numbers", **facts: Any) -> tuple[Path, str]:
    """Create a generation with one file, and return its directory and the hash of its manifest."""
    directory = folder / get_directory_name(generation)
    directory.mkdir(parents=True)
    (directory / "a.distcp").write_bytes(content)
    files = {"a.distcp": (len(content), hash_file(directory / "a.distcp"))}
    manifest = write_manifest(directory, files, **{"generation": generation, "run": "r", **facts})
    return directory, manifest


def test_generations_are_found_by_directory_name(tmp_path: Path) -> None:
    for name in ("generation_12", "generation_3", "generation_x", "generation_4.old", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "generation_5").write_text("")

    assert dict(iter_generations(tmp_path)) == {12: tmp_path / "generation_12", 3: tmp_path / "generation_3"}
    assert dict(iter_generations(tmp_path / "missing")) == {}
    assert not is_generation(tmp_path / "generation_3")
    assert is_generation(make_generation(tmp_path / "x")[0])


def test_manifest_contains_files_and_further_fields(tmp_path: Path) -> None:
    directory, manifest = make_generation(tmp_path, run="r", processes=2)
    fields = read_manifest(directory)

    assert fields["run"] == "r"
    assert fields["processes"] == 2
    assert fields["files"] == {"a.distcp": [7, hash_file(directory / "a.distcp")]}
    assert manifest == hash_file(directory / "manifest.json")
    verify_generation(directory, manifest)


def test_any_flipped_bit_of_a_manifest_is_detected(tmp_path: Path) -> None:
    directory, manifest = make_generation(tmp_path, run="r")
    path = directory / "manifest.json"
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        with pytest.raises(CheckpointCorruptedError):
            verify_generation(directory, manifest)


@pytest.mark.parametrize("content", [b"number", b"numberz", b"numbers!", b""])
def test_corrupted_file_is_reported_with_its_path(tmp_path: Path, content: bytes) -> None:
    directory, _ = make_generation(tmp_path)
    (directory / "a.distcp").write_bytes(content)

    with pytest.raises(CheckpointCorruptedError, match=r"a\.distcp: corrupted: checksum mismatch"):
        verify_generation(directory)


def test_manifest_of_another_generation_is_rejected(tmp_path: Path) -> None:
    directory, _ = make_generation(tmp_path, run="r")
    _, other = make_generation(tmp_path, 2, run="s")

    with pytest.raises(CheckpointCorruptedError, match="not the generation that was saved under this name"):
        verify_generation(directory, other)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"check": 1}', "null"])
def test_invalid_manifest_is_corrupted(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(CheckpointCorruptedError, match="manifest.json is missing or corrupted"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"../a.distcp": [7, "0" * 32]}, "a file name without a directory"),
        ({"/dev/zero": [7, "0" * 32]}, "a file name without a directory"),
        ({"a\0": [7, "0" * 32]}, "a file name without a directory"),
        ({"a.distcp": [-1, "0" * 32]}, "an integer from 0"),
        ({"a.distcp": [10**30, "0" * 32]}, "an integer from 0"),
        ({"a.distcp": [7, None]}, "a string"),
        ({"a.distcp": [7]}, "a list of 2 to 2 entries"),
        ({"a.distcp": None}, "a list"),
        (None, "a mapping"),
        ([], "a mapping"),
    ],
)
def test_manifest_with_an_invalid_value_is_corrupted(tmp_path: Path, files: Any, reason: str) -> None:
    fields = {"generation": 1, "run": "r", "files": files}
    write_json(tmp_path / "manifest.json", {**fields, "check": checksum(fields)})

    with pytest.raises(CheckpointCorruptedError, match=f"corrupted.*files.*expected {reason}"):
        verify_generation(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "a.distcp"])
def test_fifo_in_a_generation_is_reported_without_blocking(tmp_path: Path, name: str) -> None:
    directory, _ = make_generation(tmp_path)
    (directory / name).unlink()
    os.mkfifo(directory / name)

    with pytest.raises(CheckpointCorruptedError, match=name):
        verify_generation(directory)


class TestReference:
    def test_reference_resolves_to_a_directory_next_to_the_file(self, tmp_path: Path) -> None:
        directory, manifest = make_generation(tmp_path)
        reference = {"directory": "generation_1", "manifest": manifest}

        assert resolve_pointer(tmp_path / "x.pth", {"generation": reference}) == directory

    def test_checkpoint_in_a_single_file_contains_no_reference(self, tmp_path: Path) -> None:
        assert resolve_pointer(tmp_path / "x.pth", {"state_dict": {}}) is None
        assert resolve_pointer(tmp_path / "x.pth", {"generation": 3}) is None

    def test_missing_generation_is_reported_with_its_name(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="generation_1, which does not exist. Copy that directory as well"):
            resolve_pointer(tmp_path / "x.pth", {"generation": {"directory": "generation_1", "manifest": "0" * 32}})

    @pytest.mark.parametrize(
        "name",
        [
            "../generation_1",
            "/generation_1",
            "generation_1/..",
            "generation_1\0",
            "generation_" + "9" * 200,
            "x",
            "",
            None,
            3,
        ],
    )
    def test_reference_outside_the_directory_is_rejected(self, tmp_path: Path, name: object) -> None:
        with pytest.raises(CheckpointCorruptedError, match="invalid reference to a generation"):
            resolve_pointer(tmp_path / "x.pth", {"generation": {"directory": name, "manifest": "0" * 32}})

    @pytest.mark.parametrize("manifest", [None, 3, "0", ["0" * 32]])
    def test_reference_with_an_invalid_hash_is_rejected(self, tmp_path: Path, manifest: object) -> None:
        make_generation(tmp_path)
        with pytest.raises(CheckpointCorruptedError, match="generation.manifest: expected a string"):
            resolve_pointer(tmp_path / "x.pth", {"generation": {"directory": "generation_1", "manifest": manifest}})


def test_existing_generation_is_not_replaced(tmp_path: Path) -> None:
    first, _ = make_generation(tmp_path / "one")
    second, _ = make_generation(tmp_path / "two", content=b"others")
    commit_generation(first, tmp_path / "generation_1")

    with pytest.raises(OSError, match="not empty"):
        commit_generation(second, tmp_path / "generation_1")
    assert (tmp_path / "generation_1/a.distcp").read_bytes() == b"numbers"


def test_interrupted_removal_leaves_no_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = make_generation(tmp_path)

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hookbus.checkpoint.generations.shutil.rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        remove_generation(directory, "a")

    assert dict(iter_generations(tmp_path)) == {}
    assert [path.name.startswith(".tmp-") for path in tmp_path.iterdir()] == [True]
