"""State of a run in the files of Keras."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

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


def test_other_files_contain_no_state(tmp_path: Path) -> None:
    (tmp_path / "m.weights.json").touch()
    (tmp_path / "folder.keras").mkdir()
    names = ("m.weights.json", "folder.keras", "missing.keras")
    assert not any(can_contain_state(tmp_path / name) for name in names)
