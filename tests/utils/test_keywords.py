"""Tests of the messages about unknown keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from hookbus import HookBus, Trainer, load_config
from hookbus._utils.framework_keys import FRAMEWORK_KEYS, find_equivalent
from hookbus.errors import ArgumentError, ConfigError


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: HookBus().run(epoch=3), "bus.run: unexpected keyword argument 'epoch'. Did you mean 'epochs'?"),
        (
            lambda: HookBus().run(max_epochs=3),
            "bus.run: unexpected keyword argument 'max_epochs'. Pass 'epochs', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1), criterion=None, epoch=3),
            "Trainer: unexpected keyword argument 'criterion'. Pass 'loss_fn', its name in hookbus.\n"
            "Trainer: unexpected keyword argument 'epoch'. Did you mean 'epochs'?",
        ),
        (
            lambda: Trainer(callbacks=[]),
            "Trainer: unexpected keyword argument 'callbacks'. Pass 'hooks', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1)).fit(max_epochs=3),
            "Trainer.fit: unexpected keyword argument 'max_epochs'. Pass 'epochs', its name in hookbus.",
        ),
        (
            lambda: Trainer(nn.Linear(1, 1), max_keep_ckpts=3),
            "Trainer: unexpected keyword argument 'max_keep_ckpts'. It is a setting of the hook 'checkpoint': pass it "
            "to that hook.",
        ),
        (lambda: HookBus(hook=[]), "HookBus: unexpected keyword argument 'hook'. Did you mean 'hooks'?"),
        (
            lambda: load_config({}, override=[]),
            "load_config: unexpected keyword argument 'override'. Did you mean 'overrides'?",
        ),
        (
            lambda: Trainer.from_file("run.yaml", override=[]),
            "Trainer.from_file: unexpected keyword argument 'override'. Did you mean 'overrides'?",
        ),
    ],
)
def test_unknown_argument_names_the_accepted_one(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, TypeError)


def test_signatures_are_unchanged() -> None:
    assert list(inspect.signature(HookBus).parameters) == ["hooks", "order"]
    assert "epochs" in inspect.signature(Trainer.fit).parameters
    assert next(iter(inspect.signature(Trainer).parameters)) == "model"


def test_equivalents_are_arguments_of_the_trainer() -> None:
    known = inspect.signature(Trainer).parameters
    missing = [name for name in FRAMEWORK_KEYS if find_equivalent(name, known) is None]
    assert missing == []
    assert find_equivalent("max_epochs", ["iterations"]) is None
