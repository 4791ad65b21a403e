"""Tests of the structure of files that were loaded as data."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus.checkpoint.load import load_file
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import CheckpointCorruptedError


def nest(depth: int) -> list[Any]:
    """Return a list with a number of levels."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def save(path: Path, content: Any) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=True)
    return path


def test_nesting_is_limited_exactly(tmp_path: Path) -> None:
    load_file(save(tmp_path / "a.pth", {"a": nest(63)}))
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(save(tmp_path / "b.pth", {"a": nest(64)}))


def test_very_deep_nesting_is_refused(tmp_path: Path) -> None:
    # Protocol 2: 100,000 empty lists on the stack, each appended to the one before; the pickler would recurse.
    path = save(tmp_path / "a.pth", {"a": 1})
    replace_pickle(path, b"\x80\x02}X\x01\x00\x00\x00a" + b"]" * 100_000 + b"a" * 99_999 + b"s.")
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(path)


def test_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pth", {"a": 1})
    replace_pickle(path, b"\x80\x02}X\x01\x00\x00\x00a]q\x00h\x00as.")
    with pytest.raises(CheckpointCorruptedError, match="expected at most 64 levels of nesting"):
        load_file(path)


@pytest.mark.slow
def test_exponential_number_of_shared_lists_is_refused(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(CheckpointCorruptedError, match="expected at most 5000000 containers"):
        load_file(save(tmp_path / "a.pth", {"a": value}))


def test_attribute_that_replaces_a_method_is_refused(tmp_path: Path) -> None:
    state: Any = OrderedDict(w=torch.ones(1))
    state.update = 3
    with pytest.raises(CheckpointCorruptedError, match="got an attribute 'update' of a OrderedDict"):
        load_file(save(tmp_path / "a.pth", {"state_dict": state}))


def test_versions_of_modules_are_accepted(tmp_path: Path) -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    loaded = load_file(save(tmp_path / "a.pth", {"state_dict": state}))
    assert loaded["state_dict"]._metadata == state._metadata  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*no valid sidecar")
def test_tensor_without_data_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pth", {"a": [torch.ones(10**12, device="meta")]})
    assert read_checkpoint(path, map_location="meta")["a"][0].shape == (10**12,)
    with pytest.raises(CheckpointCorruptedError, match=r"tensors with data, got shape \(1000000000000,\)"):
        read_checkpoint(path)


def replace_pickle(path: Path, pickled: bytes) -> None:
    """Replace the pickle in a file of `torch.save`."""
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.write_record("data.pkl", pickled, len(pickled))
    writer.write_record("byteorder", "little", 6)
    writer.write_end_of_file()
