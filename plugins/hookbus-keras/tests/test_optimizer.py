"""View of an optimizer of Keras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
import torch

from hookbus import HookBus
from hookbus_keras import KerasBridge
from hookbus_keras.optimizer import OptimizerView, get_learning_rate
from hookbus_logger import JsonlHook

from .toys import build_model, fit


def build_view(optimizer: Any) -> OptimizerView:
    model = build_model(optimizer)
    optimizer.build(model.trainable_variables)
    return OptimizerView(optimizer, model.trainable_variables)


class TestLearningRate:
    def test_rate_is_that_of_keras(self) -> None:
        optimizer = keras.optimizers.SGD(0.5)
        view = build_view(optimizer)
        assert [float(group["lr"]) for group in view.param_groups] == [0.5]
        optimizer.learning_rate = 0.25
        assert float(view.param_groups[0]["lr"]) == 0.25
        assert len(view.param_groups[0]["params"]) == 4

    def test_rate_of_a_schedule_is_the_current_one(self) -> None:
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(1.0, 1, 0.5))
        build_view(optimizer)
        optimizer.iterations.assign(2)
        assert float(get_learning_rate(optimizer)) == 0.25

    def test_rates_are_logged(self, tmp_path: Path) -> None:
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25])
        model = build_model(keras.optimizers.SGD(schedule))
        bridge = KerasBridge(HookBus([JsonlHook(interval=1)]), model, work_dir=tmp_path)
        bridge.attach()
        fit(model)
        [path] = tmp_path.rglob("metrics.jsonl")
        values = [json.loads(line).get("values", {}) for line in path.read_text().splitlines()]
        assert [entry["lr"] for entry in values if "lr" in entry][:4] == [1.0, 0.5, 0.25, 0.25]


class TestState:
    def test_state_is_restored(self) -> None:
        first, second = (keras.optimizers.SGD(0.5, momentum=0.9) for _ in range(2))
        view, other = build_view(first), build_view(second)
        first.iterations.assign(7)
        first.learning_rate = 0.125
        other.load_state_dict(view.state_dict())
        assert (int(second.iterations), float(get_learning_rate(second))) == (7, 0.125)

    def test_state_of_another_optimizer_is_refused(self) -> None:
        state = build_view(keras.optimizers.Adam()).state_dict()
        with pytest.raises(ValueError, match="Compile the model with the same optimizer"):
            build_view(keras.optimizers.SGD()).load_state_dict(state)

    def test_tensors_are_references(self) -> None:
        view = build_view(optimizer := keras.optimizers.SGD())
        before = view.state_dict()["variables"]
        optimizer.iterations.assign(3)
        assert all(map(torch.equal, before, view.state_dict()["variables"]))

    def test_hooks_cannot_step(self) -> None:
        with pytest.raises(NotImplementedError, match="called by `fit`"):
            build_view(keras.optimizers.SGD()).step()
