"""State of a run in the files of Keras."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import h5py
import keras
import numpy as np
import torch

from hookbus_keras.files import can_contain_state, read_state, write_state

from .toys import INPUTS, build_model, fit

STATE = {"loop": {"iters": 3}, "average": torch.arange(3.0)}


@pytest.fixture(params=["m.keras", "m.weights.h5"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file of a trained model with a state."""
    model, path = build_model(), tmp_path / request.param
    fit(model)
    (model.save if path.suffix == ".keras" else model.save_weights)(path)
    assert read_state(path) == {}
    write_state(path, STATE)
    return path


def test_state_is_read_as_it_was_written(path: Path) -> None:
    state = read_state(path)
    assert state["loop"] == {"iters": 3}
    assert torch.equal(state["average"], STATE["average"])


def test_keras_loads_the_file(path: Path) -> None:
    model = build_model()
    model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
    if path.suffix == ".keras":
        loaded = keras.models.load_model(path)
        assert np.array_equal(loaded.predict(INPUTS, verbose=0), model.predict(INPUTS, verbose=0))


def test_failed_write_leaves_the_file_unchanged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
        assert archive.fp is not None
        archive.fp.write(data[: len(data) // 2])
        fail()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    content = path.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", write_half)
    monkeypatch.setattr(h5py.File, "create_dataset", fail)
    with pytest.raises(OSError, match="no space left"):
        write_state(path, {"other": torch.ones(100)})
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_symlink_remains_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target.keras", tmp_path / "link.keras"
    build_model().save(target)
    link.symlink_to(target)
    write_state(link, STATE)
    assert link.is_symlink()
    assert read_state(target)["loop"] == STATE["loop"]


def test_other_files_contain_no_state(tmp_path: Path) -> None:
    (tmp_path / "m.weights.json").touch()
    (tmp_path / "folder.keras").mkdir()
    names = ("m.weights.json", "folder.keras", "missing.keras")
    assert not any(can_contain_state(tmp_path / name) for name in names)
