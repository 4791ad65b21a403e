"""Tests of the construction of a Trainer."""

from __future__ import annotations

import pydoc
from typing import Any

import pytest
import torch

from hookbus import Hook, Trainer
from hookbus.errors import ConfigError
from hookbus.testing import fingerprint
from tests import toys


class BatchCounter(Hook):
    batches = 0

    def after_train_iter(self) -> None:
        self.batches += 1


class EndError(Exception):
    pass


def raise_end() -> None:
    raise EndError


class TestDevice:
    def test_model_and_batches_are_on_the_device(self) -> None:
        seen: list[str] = []
        trainer = toys.trainer(train_loader=toys.pairs(1), epochs=1, device="meta")
        trainer.bus.on("before_train_iter")(lambda batch: seen.extend(tensor.device.type for tensor in batch))
        trainer.bus.on("after_train_iter")(raise_end)  # before values are read, which a tensor without data lacks
        with pytest.raises(EndError):
            trainer.fit()
        run = trainer.bus.current

        assert seen == ["meta", "meta"]
        assert {parameter.device.type for parameter in trainer.model.parameters()} == {"meta"}
        assert run is not None
        assert run.device == torch.device("meta")


class TestArguments:
    def test_seed_makes_trainings_reproducible(self) -> None:
        def weights(seed: int) -> str:
            trainer = toys.trainer(epochs=2, seed=seed)
            torch.rand(3)
            trainer.fit()
            return fingerprint(trainer.model.state_dict())

        assert weights(1) == weights(1)
        assert weights(1) != weights(2)

    def test_hook_may_be_registered_later(self) -> None:
        hook = BatchCounter()
        trainer = toys.trainer(epochs=1)
        assert trainer.register_hook(hook, "mine", priority=7) is hook
        trainer.train()

        assert trainer.bus.hooks == {"mine": hook}
        assert hook.batches == 3


class TestInvalidArguments:
    def test_path_as_model_suggests_from_file(self) -> None:
        with pytest.raises(ConfigError, match=r"got str\. Use Trainer.from_file"):
            Trainer("run.yaml")  # type: ignore[arg-type]

    @pytest.mark.parametrize("resume", [True, False, None, 3, ""])
    def test_invalid_resume_is_an_error(self, resume: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            toys.trainer(epochs=1, resume=resume)
        assert str(caught.value) == (f"resume: should be auto, never or the path of a checkpoint, got {resume!r}.")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": -1}, "epochs: expected an integer >= 0, got -1."),
            ({"iterations": 1.5}, "iterations: expected an integer >= 0, got 1.5."),
            ({"scheduler_interval": "batch"}, "scheduler_interval: expected 'epoch' or 'step', got 'batch'."),
            ({"order": "random"}, "order: invalid value, got 'random'. Set 'nested' or 'ascending'."),
            (
                {"metrics": ["acuracy"]},
                "metrics: expected a built-in metric or an import string, got 'acuracy'. Did you mean 'accuracy'?",
            ),
        ],
    )
    def test_invalid_setting_is_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            toys.trainer(**options)

        assert str(raised.value) == message

    def test_unknown_argument_is_a_type_error(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'learning_rate'"):
            toys.trainer(learning_rate=0.1)


def test_help_describes_every_argument() -> None:
    text = pydoc.render_doc(Trainer, renderer=pydoc.plaintext)
    names = Trainer.__init__.__annotations__.keys() - {"return"}
    assert "accumulate" in names
    assert [name for name in names if f" {name}: " not in text.partition("Args:")[2]] == []
