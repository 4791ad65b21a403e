"""State of a run in the files of Keras: a member of a `.keras` archive, a dataset of an `.h5` file.

Keras ignores both when it loads the file, so that it remains a file of Keras.
"""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hookbus.checkpoint import make_temporary_name

MEMBER = "hookbus.pt"
"""Name of the member and of the dataset."""

SUFFIXES = (".keras", ".h5")
"""Suffixes of the files that can contain a state."""


def can_contain_state(path: Path) -> bool:
    """Return whether a path is a local file in a supported format: not one of the shards of `max_shard_size`."""
    return path.suffix in SUFFIXES and path.is_file()


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Add a state to a file that Keras has written, atomically: if it fails, the file is that of Keras.

    Args:
        path: File for which `can_contain_state` is true.
        state: Built-in types and tensors.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    target = path.resolve()  # a symlink remains one
    temporary = target.with_name(make_temporary_name(""))
    try:
        shutil.copyfile(target, temporary)
        _add_member(temporary, target.suffix, buffer)
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())  # before the rename: after a power failure, the name could exist without the data
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _add_member(path: Path, suffix: str, content: io.BytesIO) -> None:
    if suffix == ".keras":
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(MEMBER, content.getvalue())
        return
    with h5py.File(path, "a") as file:
        file.create_dataset(MEMBER, data=np.frombuffer(content.getbuffer(), dtype=np.uint8))


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in a file of Keras; {} if it was saved without hookbus. Executes no code from the file."""
    content = _read_member(path)
    if content is None:
        return {}
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def _read_member(path: Path) -> bytes | None:
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            return archive.read(MEMBER) if MEMBER in archive.namelist() else None
    with h5py.File(path, "r") as file:
        return file[MEMBER][()].tobytes() if MEMBER in file else None
