"""The kit for people who write hooks finds what is wrong with one, and nothing in a good one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ConfigDict
from torch import nn

from hookbus import Hook, HookBus, HookConfig, every, hookimpl
from hookbus.testing import Event, RecordingBus, check_hook, fake_training, fingerprint


class GoodConfig(HookConfig):
    interval: int = 2


class Good(Hook):
    """Counts, draws from a generator of its own, and keeps all of it."""

    Config = GoodConfig
    observer = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.generator = torch.Generator().manual_seed(0)
        self.noise = torch.zeros(2)
        self.count = 0

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Any) -> None:
        self.count += 1
        self.noise = torch.rand(2, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "noise": self.noise}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.noise = state["count"], state["noise"]


# -- check_hook ------------------------------------------------------------------------------------------------


def test_a_good_hook_passes() -> None:
    check_hook(Good)
    check_hook(Good, interval=1)
    check_hook(Hook)


class Loose(Good):
    class Config(GoodConfig):
        model_config = ConfigDict(extra="ignore")


class Misspelt(Good):
    def after_trian_epoch(self) -> None: ...


class Forgetful(Good):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Objects(Good):
    def state_dict(self) -> dict[str, Any]:
        return {"path": Path("runs")}


class Breaking(Good):
    observer = False

    def after_epoch(self, run: Any) -> None:
        raise ValueError(f"epoch {run.epoch}")


class BreakingTheSecondRun(Good):
    observer = False

    def before_run(self) -> None:
        if self.count:
            raise ValueError("used already")


class Meddling(Good):
    def after_backward(self, run: Any) -> None: ...

    def before_optimizer_step(self, run: Any) -> None:
        for parameter in run.model.parameters():
            parameter.grad *= 1.0001


class Shuffling(Good):
    def after_epoch(self) -> None:
        random.random()


class ShufflingTorch(Good):
    def after_epoch(self) -> None:
        torch.rand(1)


class ShufflingNumpy(Good):
    def after_epoch(self) -> None:
        np.random.rand()


class Demanding(Good):
    def __init__(self, *args: Any, path: str, **settings: Any) -> None:
        super().__init__(*args, **settings)


class Failing(Good):
    def after_epoch(self) -> None:
        raise OSError("no disk")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Loose, "Loose accepts an unknown setting; let its Config forbid extra fields, as HookConfig does."),
        (Misspelt, "after_trian_epoch is not a point. Did you mean 'after_train_epoch'"),
        (Forgetful, "Forgetful: a fresh instance that loads the state of another has a different state."),
        (Objects, r"Objects.state_dict\(\) is not plain data"),
        (Breaking, "Breaking breaks a small training: ValueError: epoch 0"),
        (BreakingTheSecondRun, "BreakingTheSecondRun breaks a small training: ValueError: used already"),
        (Meddling, "Meddling calls itself an observer, but the weights are not what they are without it"),
        (Shuffling, "Shuffling calls itself an observer, but it uses the random streams of the training"),
        (ShufflingTorch, "ShufflingTorch calls itself an observer, but"),
        (ShufflingNumpy, "ShufflingNumpy calls itself an observer, but it uses the random streams"),
        (Demanding, "Demanding cannot be built from {}: .* missing 1 required keyword-only argument: 'path'"),
        (
            Failing,
            "Failing breaks a small training: HookWarning: hook 'failing' .* failed at after_epoch: OSError: no disk",
        ),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_planted_fault_is_found_and_told(cls: type[Hook], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_hook(cls)


def test_settings_that_do_not_hold_are_told() -> None:
    with pytest.raises(AssertionError, match="Good cannot be built from {'interval': 0.5}: Good: interval: should be"):
        check_hook(Good, interval=0.5)


def test_a_hook_that_changes_training_may_do_so_unless_it_calls_itself_an_observer() -> None:
    class Scaling(Meddling):
        observer = False

    check_hook(Scaling)


# -- RecordingBus ----------------------------------------------------------------------------------------------


def test_a_recording_bus_writes_down_events_with_arguments_and_the_calls_of_listeners() -> None:
    bus: Any = RecordingBus([Good(name="good")])
    for i in range(2):
        bus.emit("after_train_iter", batch_idx=i, outputs={"loss": 0.5})
    assert bus.fired == ["after_train_iter", "after_train_iter"]
    expected = {"step": 1, "batch_idx": 0, "batch": None, "model": None, "outputs": {"loss": 0.5}, "loss": 0.5}
    assert bus.events[0] == Event("after_train_iter", expected)
    assert [each["step"] for each in bus.arguments("after_train_iter")] == [1, 2]
    assert bus.arguments("before_epoch") == []
    assert bus.calls_made == [("good", "after_train_iter")]


def test_a_recording_bus_has_the_order_it_is_given() -> None:
    bus: Any = RecordingBus([Good(name="a", priority=90), Good(name="b")], order="ascending")
    bus.emit("after_train_iter")
    bus.emit("after_train_iter")
    assert bus.calls_made == [("b", "after_train_iter"), ("a", "after_train_iter")]


# -- fake_training ---------------------------------------------------------------------------------------------


def test_a_small_training_ends_well_with_so_many_iterations() -> None:
    training = fake_training([good := Good()], epochs=3, batches=5, batch_size=2)
    run = training.run
    assert (run.outcome, run.epochs_done, run.iters_done, run.steps_done) == ("finished", 3, 15, 15)
    assert run.samples_done == 30
    assert good.count == 7
    assert isinstance(training.model, nn.Module)


def test_the_same_training_gives_the_same_bits() -> None:
    first, second = fake_training(), fake_training()
    assert fingerprint(first.model.state_dict()) == fingerprint(second.model.state_dict())
    assert fingerprint(first.rng) == fingerprint(second.rng)
    longer = fake_training(epochs=3)
    assert fingerprint(longer.model.state_dict()) != fingerprint(first.model.state_dict())


def test_losses_and_scores_are_those_that_were_asked_for(tmp_path: Path) -> None:
    bus: Any = RecordingBus()
    training = fake_training(
        bus=bus, losses=lambda i: i / 2, scores=lambda epoch: {"accuracy": epoch / 10}, work_dir=tmp_path / "run"
    )
    assert [each["loss"] for each in bus.arguments("after_train_iter")] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert [dict(each["metrics"]) for each in bus.arguments("after_val")] == [
        {"val/accuracy": 0.1},
        {"val/accuracy": 0.2},
    ]
    assert (tmp_path / "run").is_dir()
    assert training.run.work_dir is not None


def test_options_are_those_of_a_run() -> None:
    assert fake_training(seed=7).run.seed == 7
    assert isinstance(fake_training().run.bus, HookBus)


# -- fingerprint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1, 2], [2, 1]),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (None, 0),
    ],
    ids=str,
)
def test_values_that_differ_in_any_bit_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_equal_bits_have_equal_fingerprints() -> None:
    value = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(2, 3), "c": torch.tensor(1.5, dtype=torch.bfloat16)}
    same = {"a": [1, (2.5, None)], "b": torch.arange(6).reshape(3, 2).reshape(2, 3), "c": value["c"].clone()}
    assert fingerprint(value) == fingerprint(same)
    assert fingerprint(torch.arange(6).reshape(2, 3).T) == fingerprint(torch.arange(6).reshape(2, 3).T.contiguous())
    assert fingerprint(torch.ones(1, requires_grad=True)) == fingerprint(torch.ones(1))
