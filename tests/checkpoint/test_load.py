"""Tests of loading checkpoint files as data, and with tensors on the meta device."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus.checkpoint.load import load_file, load_on_meta, resolve_path
from hookbus.errors import CheckpointCorruptedError, CheckpointError


def save(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_metadata_contains_meta_tensors_and_values(tmp_path: Path, zipped: bool) -> None:
    path = save(tmp_path / "a.pth", {"w": torch.ones(2, 3), "n": {"epoch": 4}}, _use_new_zipfile_serialization=zipped)
    metadata = load_on_meta(path)
    assert (metadata["w"].shape, metadata["w"].device.type, metadata["n"]) == ((2, 3), "meta", {"epoch": 4})
    assert torch.equal(load_file(path)["w"], torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore")  # of torch: deprecated, but models contain such tensors
def test_file_with_quantized_tensors_has_metadata(tmp_path: Path) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)
    path = save(tmp_path / "a.pth", {"w": quantized, "n": 4})
    metadata = load_on_meta(path)
    assert (metadata["w"].shape, metadata["n"]) == ((3,), 4)


class TestInvalidFile:
    def test_error_for_a_pickled_module_recommends_the_state_dict(self, tmp_path: Path) -> None:
        path = save(tmp_path / "model.pth", nn.Linear(2, 2))
        for read in (load_on_meta, load_file):
            with pytest.raises(CheckpointCorruptedError) as caught:
                read(path)
            assert str(caught.value) == (
                f"{path}: file cannot be loaded as data: it contains torch.nn.modules.linear.Linear, and loading that "
                "would execute code. Save only the weights in the program that wrote the file: "
                "torch.save(model.state_dict(), path)."
            )

    @pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\x00" * 100])
    def test_file_of_another_format_is_rejected(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "a.pth"
        path.write_bytes(content)
        with pytest.raises(CheckpointCorruptedError) as caught:
            load_on_meta(path)
        assert str(caught.value) == (
            f"{path}: file cannot be loaded as data: not a file written by torch.save, or truncated."
        )

    def test_truncated_file_is_rejected(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.pth", {"w": torch.ones(1000)})
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(CheckpointCorruptedError, match="or truncated"):
            load_on_meta(path)

    def test_file_without_a_dict_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="not a checkpoint: expected a dict, got list"):
            load_on_meta(save(tmp_path / "a.pth", [1]))

    def test_invalid_path_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="File name too long"):
            resolve_path(tmp_path / ("x" * 300))
        with pytest.raises(CheckpointError, match="embedded null"):
            resolve_path("a\0b")

    def test_fifo_is_rejected_without_blocking(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "a.pth")
        with pytest.raises(CheckpointError, match=r"a\.pth: is not a regular file"):
            load_on_meta(tmp_path / "a.pth")
        with pytest.raises(CheckpointError, match=r"a\.pth: file cannot be read: not a regular file"):
            load_file(tmp_path / "a.pth")

    def test_device_is_rejected(self) -> None:
        with pytest.raises(CheckpointError, match="/dev/zero: is not a regular file"):
            load_on_meta("/dev/zero")

    def test_control_characters_of_a_path_are_escaped(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"\\x1b\[2J.*file does not exist") as raised:
            load_on_meta(tmp_path / "\x1b[2J")
        assert str(raised.value).isprintable()

    def test_directory_is_rejected_with_a_list_of_its_files(self, tmp_path: Path) -> None:
        save(tmp_path / "a.pth", {})
        with pytest.raises(CheckpointError, match=r"is a directory. Pass the path of a file. Available in .*: a.pth."):
            load_on_meta(tmp_path)
