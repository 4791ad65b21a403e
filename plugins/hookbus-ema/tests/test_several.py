"""Several averages of a run: results, best files, early stopping, checkpoints and resume of each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hookbus import Hook, HookBus, Trainer, build_hook
from hookbus._run.run import Run
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import ConfigError
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook, SWAHook

from .test_hook import CountUp, ValidationRequester, count_up, get_weight, one_weight, set_weights

VAL = {"val_loader": [torch.ones(2)]}


@pytest.fixture(autouse=True)
def _skip_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip `fsync`: these tests do not depend on durability after a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def three() -> list[Any]:
    """Return averages whose new value is halfway to the weight, a quarter of the way, and the mean over all epochs."""
    return [
        EMAHook(name="ema_a", momentum=0.5, warm_up=0),
        EMAHook(name="ema_b", momentum=0.75, warm_up=0),
        SWAHook(swa_epoch_start=1),
    ]


def compute(momentum: float, steps: int) -> float:
    average = 0.0
    for step in range(1, steps + 1):
        average += (1 - momentum) * (step - average)
    return average


class Results(Hook):
    """Record the results of each validation, and what its listeners see."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[dict[str, float]] = []
        self.loaders: list[tuple[str | None, float]] = []
        self.after: list[float] = []
        self.raw: list[float] = []

    def after_val_iter(self, run: Run, model: nn.Module, dataloader_name: str | None) -> None:
        self.loaders.append((dataloader_name, get_weight(model.state_dict())))
        self.raw.append(get_weight(run.weights.raw()))

    def after_val(self, metrics: Any, model: nn.Module) -> None:
        self.results.append(dict(metrics))
        self.after.append(get_weight(model.state_dict()))


def test_each_average_has_results_of_its_own() -> None:
    """The loss is the negative weight, which is the number of steps in training."""
    record, model = Results(), CountUp()
    count_up(*three(), record, model=model, epochs=2, batches=2, **VAL)
    for results, steps, mean in zip(record.results, (2, 4), (2, 3), strict=True):
        assert results == {
            "val/loss": -compute(0.5, steps),
            "val/ema_b/loss": pytest.approx(-compute(0.75, steps)),
            "val/swa/loss": -mean,
        }
    assert record.loaders[:3] == [(None, compute(0.5, 2)), ("ema_b", compute(0.75, 2)), ("swa", 2)]
    assert record.raw == [2, 2, 2, 4, 4, 4]
    assert record.after == [compute(0.5, 2), compute(0.5, 4)]
    assert model.weight.item() == 4


def test_first_average_has_the_results_without_a_name() -> None:
    record = Results()
    count_up(*three()[::-1], record, batches=2, **VAL)
    assert set(record.results[0]) == {"val/loss", "val/ema_b/loss", "val/ema_a/loss"}
    assert record.results[0]["val/loss"] == -2


def test_average_that_has_not_started_is_that_of_the_raw_weights() -> None:
    record, late = Results(), EMAHook(name="late", momentum=0.5, warm_up=0, start_epoch=1)
    count_up(three()[0], late, record, epochs=2, batches=2, **VAL)
    assert [results["val/late/loss"] for results in record.results] == [-2, -3.25]


def test_named_loaders_are_evaluated_for_each_average() -> None:
    record = Results()
    loaders = {"clean": [torch.ones(2)], "double": [2 * torch.ones(2)]}
    count_up(*three()[:2], record, batches=2, val_loader=loaders)
    b = compute(0.75, 2)
    assert record.results[0] == {
        "val/clean/loss": -1.25,
        "val/double/loss": -2.5,
        "val/ema_b/clean/loss": -b,
        "val/ema_b/double/loss": -2 * b,
    }


def test_test_evaluates_each_average() -> None:
    _, trainer = count_up(*three(), batches=2, test_loader=[torch.ones(2)])
    assert trainer.test() == {"test/loss": -1.25, "test/ema_b/loss": -compute(0.75, 2), "test/swa/loss": -2}


def test_returned_outputs_are_those_of_the_first_average() -> None:
    def step(model: Any, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": model(batch), "output": model.weight * batch}

    _, trainer = count_up(*three(), batches=2, step_fn=step, **VAL)
    results, outputs = trainer.validate(return_outputs=True)
    assert set(results) == {"val/loss", "val/ema_b/loss", "val/swa/loss"}
    assert outputs.tolist() == [1.25, 1.25]


def test_validation_function_of_a_custom_loop_is_called_for_each_average() -> None:
    model, record = one_weight(), Results()
    bus = HookBus([*three()[:2], ValidationRequester(2), record])
    with bus.run(model=model, validate=lambda: {"loss": model.weight.item()}) as run:
        list(set_weights(run, model, [1, 2]))
    assert record.results == [{"val/loss": 1.25, "val/ema_b/loss": compute(0.75, 2)}]
    assert model.weight.item() == 2


def test_loop_that_validates_itself_evaluates_the_first_average(caplog: pytest.LogCaptureFixture) -> None:
    model, record = one_weight(), Results()
    bus = HookBus([*three()[:2], record])
    with bus.run(model=model) as run:
        list(set_weights(run, model, [1, 2]))
        for _ in range(2):
            run.begin_validation()
            run.end_validation({"loss": model.weight.item()})
    assert record.results == [{"val/loss": 1.25}] * 2
    assert len([m for m in caplog.messages if "which evaluate one average: those of 'ema_b' have no results" in m]) == 1


@pytest.mark.slow
def test_failed_validation_restores_the_raw_weights() -> None:
    class Failure(Hook):
        def after_val_iter(self, dataloader_name: str | None) -> None:
            if dataloader_name == "swa":
                raise ZeroDivisionError

    model = CountUp()
    with pytest.raises(ZeroDivisionError):
        count_up(*three(), Failure(), model=model, **VAL)
    assert model.weight.item() == 4


@pytest.mark.parametrize("monitor", ["val/ema_b/loss", "val_ema_b/loss", "loss"])
def test_best_file_publishes_the_average_with_the_score(monitor: str, tmp_path: Path) -> None:
    saver = CheckpointHook(best_metric=monitor, publish=True)
    run = count_up(*three(), saver, epochs=2, batches=2, work_dir=tmp_path, **VAL)[0]
    name, expected = ("val/loss", compute(0.5, 4)) if monitor == "loss" else ("val/ema_b/loss", compute(0.75, 4))
    best = run.best[name]
    assert best.value == pytest.approx(-expected)
    assert best.weights == ("averaged" if monitor == "loss" else "averaged/ema_b")
    assert best.path is not None
    checkpoint = read_checkpoint(best.path)
    assert checkpoint["meta"]["best_weights"] == {name: best.weights}
    assert get_weight(checkpoint["ema_state_dict"]) == compute(0.5, 4)
    assert {key: get_weight(value) for key, value in checkpoint["averages"].items()} == {
        "ema_b": pytest.approx(compute(0.75, 4)),
        "swa": 3,
    }
    published = load_file(tmp_path / "checkpoints/model.safetensors")
    assert get_weight(published) == pytest.approx(expected)


@pytest.mark.parametrize("source", ["memory", "file"])
def test_early_stopping_restores_all_averages_of_the_best_score(source: str, tmp_path: Path) -> None:
    hooks = three()
    stopping = EarlyStoppingHook(monitor="val/swa/loss", mode="max", patience=9, restore_best_weights=source)
    saver = CheckpointHook(best_metric="val/swa/loss", rule="greater")
    _, trainer = count_up(*hooks, stopping, saver, epochs=3, batches=2, work_dir=tmp_path, **VAL)
    assert get_weight(trainer.model.state_dict()) == 2
    values = [get_weight(hook.averaged()) for hook in hooks]
    assert values == [compute(0.5, 2), compute(0.75, 2), 2]


def test_resumed_run_has_the_same_averages_and_results(tmp_path: Path) -> None:
    def train(epochs: int, directory: Path, **options: Any) -> tuple[list[Any], Results]:
        hooks, record = three(), Results()
        saver = CheckpointHook(interval=1, save_best=False)
        count_up(*hooks, record, saver, epochs=epochs, batches=2, work_dir=directory, **VAL, **options)
        return hooks, record

    whole, results = train(3, tmp_path / "a")
    train(2, tmp_path / "b")
    rest, later = train(3, tmp_path / "b", resume="auto")
    assert [fingerprint(hook.state_dict()) for hook in rest] == [fingerprint(hook.state_dict()) for hook in whole]
    assert later.results == results.results[2:]


def test_new_run_starts_from_the_average_of_the_same_name(tmp_path: Path) -> None:
    saver = CheckpointHook(interval=1, save_best=False)
    count_up(*three(), saver, batches=2, work_dir=tmp_path)
    file = str(next((tmp_path / "checkpoints").glob("epoch_*.pth")))
    for name, expected in (("ema_b", compute(0.75, 2)), ("other", 1.25)):
        hook = EMAHook(name=name, momentum=0.5, warm_up=0, resume_from=file)
        count_up(hook, iterations=0, epochs=None)
        assert get_weight(hook.averaged()) == pytest.approx(expected)


def test_loader_with_the_name_of_an_average_is_refused() -> None:
    with pytest.raises(ConfigError, match="hook 'a' .*of val_loader would have the same names, got 'a' for both"):
        count_up(EMAHook(name="a"), val_loader={"a": [torch.ones(2)]})


def test_metric_of_an_average_is_known_before_the_training(tmp_path: Path) -> None:
    def check(monitor: str) -> None:
        Trainer(
            CountUp(),
            lambda parameters: torch.optim.SGD(parameters, lr=1.0),
            train_loader=[torch.ones(2)],
            epochs=1,
            hooks=[*three(), build_hook({"type": "early_stopping", "monitor": monitor})],
            default_hooks=False,
            work_dir=None,
            **VAL,
        ).check()

    check("val/ema_b/loss")
    with pytest.raises(ConfigError, match="Unknown metric 'val/ema_a/loss'"):
        check("val/ema_a/loss")
