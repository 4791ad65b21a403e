"""Rows of docs/coming-from.md: predictions of Keras, and those of the Trainer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
import numpy as np
import torch
from keras import callbacks

from hookbus import Trainer, hookimpl
from hookbus.testing import RecordingBus

from .migration import attach, build_line, covers, get_weight

INPUTS = np.arange(5, dtype="float32")[:, None]


def build_model() -> Any:
    """Return a line with the weight 2."""
    model = build_line()
    model.set_weights([np.full((1, 1), 2, dtype="float32")])
    return model


def build_trainer() -> Trainer:
    """Return a Trainer of a model of torch with the weight 2."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, get_weight(build_model()))
    return Trainer(model, default_hooks=False, work_dir=None, device="cpu")


def split_batches() -> list[torch.Tensor]:
    return [*torch.from_numpy(INPUTS).split(2)]


@covers("`model.predict`", "`Trainer.predict(loader)`, or `hookbus predict run.yaml`")
def test_both_predict_each_sample() -> None:
    native = build_model().predict(INPUTS, batch_size=2, verbose=0)
    ours = build_trainer().predict(split_batches())
    assert native.tolist() == ours.tolist() == [[0.0], [2.0], [4.0], [6.0], [8.0]]


@covers("`on_predict_…`", "`before_predict…`, `after_predict…` in `Trainer.predict`; `predict` of Keras emits none")
def test_both_call_between_the_same_batches() -> None:
    native, ours, bus, callback = list[str](), list[str](), RecordingBus(), callbacks.Callback()
    names = {
        f"on_predict{part}_{end}": f"{side}_predict{part.replace('batch', 'iter')}"
        for part in ("", "_batch")
        for end, side in (("begin", "before"), ("end", "after"))
    }

    def record(calls: list[str], name: str) -> Callable[..., object]:
        return lambda *_, **__: calls.append(name)

    for method, point in names.items():
        setattr(callback, method, record(native, point))
    model = build_model()
    attach(bus, model)
    bus.emitted_points.clear()
    model.predict(INPUTS, batch_size=2, verbose=0, callbacks=[callback])
    assert bus.emitted_points == []

    trainer = build_trainer()
    listeners: dict[str, Any] = {point: build_listener(ours, point) for point in names.values()}
    trainer.register_hook(SimpleNamespace(**listeners), "record")
    trainer.predict(split_batches(), return_predictions=False)
    assert ours == native
    assert ours == ["before_predict", *["before_predict_iter", "after_predict_iter"] * 3, "after_predict"]
    keras.utils.clear_session()


def build_listener(calls: list[str], point: str) -> Any:
    return hookimpl(lambda: calls.append(point))
