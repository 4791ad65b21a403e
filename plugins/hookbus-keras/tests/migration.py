"""Rows of the migration table that have a test, and a model whose weight and losses are known in advance."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

from hookbus import HookBus
from hookbus_keras import KerasBridge
from tests.migration_page import RowTests

covers = RowTests()

BATCHES = 4
"""Number of batches of an epoch."""

WEIGHT = "_torch_params.sequential/dense/kernel"
"""Name of the weight in the state of the model."""

TRAIN_LOSSES = [-0.375, -1.375]
"""Means of the losses of the first epochs of `fit`: minus the weights, 0, 0.25, 0.5, 0.75 and 1, 1.25, 1.5, 1.75."""

VAL_DATA = np.ones((2, 1), dtype="float32"), np.full((2, 1), 3, dtype="float32")
"""Inputs and targets of two samples for a validation."""

VAL_LOSSES = [4.0, 1.0, 0.0, 1.0, 4.0, 9.0]
"""Loss of the validation after each epoch of `fit`: the weight is then 1, 2, 3, ..., and the best one is 3."""


def compute_loss(target: Any, weight: Any) -> Any:
    """Return minus the weight, whose gradient is constant, or in a validation its squared distance to the target."""
    return torch.where(target == 0, -weight, (weight - target) ** 2)


def build_line(optimizer: Any = None, **compile_options: Any) -> Any:
    """Return a model with one weight, initially 0. Each step of its default optimizer adds 0.25."""
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer or keras.optimizers.SGD(0.25), compute_loss, **compile_options)
    return model


def fit(model: Any, epochs: int = 2, *, inputs: Any = None, validate: bool = True, **options: Any) -> Any:
    """Train a line on four batches of one sample per epoch, and validate it on two."""
    inputs = np.ones((BATCHES, 1), dtype="float32") if inputs is None else inputs
    val_data = VAL_DATA if validate else None
    defaults: dict[str, Any] = {"batch_size": 1, "shuffle": False, "verbose": 0, "validation_data": val_data}
    return model.fit(inputs, np.zeros((BATCHES, 1), dtype="float32"), epochs=epochs, **{**defaults, **options})


def get_weight(model: Any) -> float:
    """Return the weight of a line."""
    return float(model.trainable_variables[0].value.detach())


def attach(hooks: Any, model: Any, **options: Any) -> KerasBridge:
    """Connect hooks, or a bus, with a model."""
    bridge = KerasBridge(hooks if isinstance(hooks, HookBus) else HookBus(hooks), model, **options)
    bridge.attach()
    return bridge
