"""A small model and its data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

INPUTS = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
TARGETS = INPUTS[:, :3].argmax(1)


def build_model(optimizer: Any = None, **compile_options: Any) -> Any:
    """Return a compiled classifier with dropout, whose weights and variable names are always the same."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss, **compile_options)
    return model


def fit(model: Any, epochs: int = 1, *, validate: bool = False, **options: Any) -> Any:
    """Train a model on batches of 4 of the 24 samples, and validate it on 8 samples."""
    held_out = {"validation_data": (INPUTS[:8], TARGETS[:8])} if validate else {}
    return model.fit(INPUTS, TARGETS, **{"batch_size": 4, "verbose": 0, "epochs": epochs, **held_out, **options})


def copy_weights(model: Any) -> list[torch.Tensor]:
    """Return copies of the weights of a model."""
    return [parameter.detach().clone() for parameter in model.parameters()]
