"""Tests of a configuration in place of the arguments of a Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from hookbus import Trainer, load_config
from hookbus.errors import ConfigError, PointError
from hookbus.trainer.config_argument import is_config

if TYPE_CHECKING:
    from tests.conftest import Project

CONFIG = {
    "work_dir": "runs/here",
    "model": {"type": "parts:net", "width": 3},
    "dataset": {"type": "parts:points", "batch_size": 8},
    "training": {"epochs": 2, "accumulate": 3},
    "default_hooks": False,
    "hooks": ["parts:ProbeHook"],
}


class OwnTrainer(Trainer):
    def __init__(self, settings: Any) -> None:
        super().__init__(settings)


@pytest.mark.parametrize("cls", [Trainer, OwnTrainer])
def test_loaded_configuration_builds_the_trainer(project: Project, cls: Any) -> None:
    config = load_config(CONFIG)
    trainer = cls(config)
    assert trainer.config is config
    assert (trainer.epochs, trainer.steps.accumulate, trainer.work_dir) == (2, 3, "runs/here")
    assert list(trainer.bus.hooks) == ["probe"]


def test_mapping_is_validated_and_builds_the_trainer(project: Project) -> None:
    assert Trainer(CONFIG, overwrite=True).overwrite is True
    assert Trainer(model=CONFIG).epochs == 2
    with pytest.raises(ConfigError) as caught:
        Trainer({**CONFIG, "sed": 1, "training": {"epochs": 0}})
    assert caught.value.problems == [
        "config: training.epochs: should be greater than or equal to 1, got 0.",
        "config: sed: unknown key. Did you mean 'seed'?",
    ]


def test_other_arguments_are_refused_instead_of_ignored(project: Project) -> None:
    start = "Trainer: a configuration contains all arguments, got "
    with pytest.raises(ConfigError, match=f"^{start}'epochs', 'hooks' in addition. Set them in the configuration"):
        Trainer(CONFIG, epochs=3, hooks=[])
    with pytest.raises(ConfigError, match=f"^{start}2 further arguments in addition"):
        Trainer(CONFIG, None, None)


def test_trainer_offers_the_logger_the_writer_and_the_events_of_its_run(project: Project) -> None:
    trainer = Trainer(CONFIG)
    assert trainer.logger is trainer.bus.current.logger
    seen: list[Any] = []
    trainer.bus.on("log_scalars")(lambda values, step: seen.append((values, step)))
    trainer.writer.write_scalar("a", 1, 2)
    trainer.call_hook("log_scalars", values={"b": 3}, step=4)
    assert seen == [({"a": 1.0}, 2), ({"b": 3}, 4)]
    with pytest.raises(PointError, match="Unknown point 'log_scalrs'. Did you mean 'log_scalars'"):
        trainer.call_hook("log_scalrs")


def test_named_models_are_not_a_configuration() -> None:
    assert not is_config({"model": nn.Linear(1, 1), "dataset": nn.Linear(1, 1)})
    assert not is_config({"G": nn.Linear(1, 1)})
    assert not is_config({})
    assert is_config({"experiment_dir": "runs/x"})
