"""A Trainer with named models and several optimizers, which a hook steps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from hookbus import Hook, Trainer
from hookbus.checkpoint import read_checkpoint
from hookbus.errors import ConfigError
from hookbus_checkpoint import CheckpointHook

DATA = [torch.randn(4, 2, generator=torch.Generator().manual_seed(i)) for i in range(3)]


class GanHook(Hook):
    """Steps D in every iteration, and G in every second one."""

    def train_step(self, run: Any, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        for name in ("D", "G") if run.iter % 2 else ("D",):
            run.optimizer[name].zero_grad()
            loss = run.model[name](batch).square().mean()
            loss.backward()
            run.optimizer[name].step()
        return {"loss": loss.detach()}


class EvalHook(GanHook):
    def val_step(self, run: Any, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": run.model["G"](batch).square().mean()}


def build(*hooks: Hook, optimizers: int = 2, **options: Any) -> Trainer:
    torch.manual_seed(0)
    models = {"G": nn.Linear(2, 1), "D": nn.Linear(2, 1)}
    optimizer = {name: torch.optim.SGD(models[name].parameters(), lr=1.0) for name in list(models)[:optimizers]}
    settings: dict[str, Any] = {"train_loader": DATA, "epochs": 2, "work_dir": None, "default_hooks": False}
    return Trainer(models, optimizer, **{**settings, **options}, hooks=hooks)


def build_schedulers(trainer_options: Any, **factories: Any) -> Any:
    """Return a trainer whose schedulers are built for its optimizers."""
    torch.manual_seed(0)
    models = {"G": nn.Linear(2, 1), "D": nn.Linear(2, 1)}
    optimizer = {name: torch.optim.SGD(model.parameters(), lr=1.0) for name, model in models.items()}
    scheduler = {name: factory(optimizer[name]) for name, factory in factories.items()}
    settings = {"train_loader": DATA, "epochs": 2, "work_dir": None, "default_hooks": False, **trainer_options}
    return Trainer(models, optimizer, scheduler=scheduler, **settings)


def halve(optimizer: Any) -> StepLR:
    return StepLR(optimizer, 1, gamma=0.5)


def get_rates(trainer: Any) -> dict[str, float]:
    return {name: optimizer.param_groups[0]["lr"] for name, optimizer in trainer.optimizer.items()}


def test_hook_steps_several_optimizers_and_resumes(tmp_path: Path) -> None:
    whole = build(GanHook(), CheckpointHook(), work_dir=tmp_path / "whole")
    run = whole.fit()
    assert run.model is whole.model
    assert (run.steps_done, run.optimizer_steps()) == (6, {"steps/G": 3, "steps/D": 6})
    build(GanHook(), CheckpointHook(), work_dir=tmp_path / "cut", epochs=1).fit()
    cut = build(GanHook(), CheckpointHook(), work_dir=tmp_path / "cut", resume="auto")
    assert cut.fit().optimizer_steps() == {"steps/G": 3, "steps/D": 6}
    torch.testing.assert_close(cut.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert list(read_checkpoint(tmp_path / "cut/checkpoints/last.pth")["state_dict"]) == ["G", "D"]


@pytest.mark.parametrize(
    ("interval", "rates"),
    [("step", {"G": 0.125, "D": 1 / 64}), ("epoch", {"G": 0.25, "D": 0.25})],
)
def test_each_scheduler_follows_its_optimizer(interval: str, rates: dict[str, float]) -> None:
    trainer = build_schedulers({"hooks": [GanHook()], "scheduler_interval": interval}, G=halve, D=halve)
    trainer.fit()
    assert get_rates(trainer) == rates


def test_scheduler_of_an_optimizer_that_steps_less_often_may_be_shorter() -> None:
    options = {"hooks": [GanHook()], "scheduler_interval": "step"}
    # Three steps in six iterations.
    trainer = build_schedulers(options, G=partial(OneCycleLR, max_lr=1.0, total_steps=4), D=halve)
    trainer.check()
    trainer.fit()
    assert trainer.optimizer["G"].param_groups[0]["lr"] == pytest.approx(4e-6)


def test_only_schedulers_that_take_a_metric_are_stepped_with_it() -> None:
    options = {"hooks": [EvalHook()], "val_loader": DATA}
    trainer = build_schedulers(options, G=halve, D=partial(ReduceLROnPlateau, patience=0, threshold=9))
    assert trainer.scheduler.monitor == "val/loss"
    trainer.check()
    trainer.fit()
    assert get_rates(trainer) == pytest.approx({"G": 0.25, "D": 0.01})


def test_scheduler_per_step_follows_the_optimizer_that_a_hook_steps() -> None:
    class TwiceHook(Hook):
        def train_step(self, run: Any, batch: torch.Tensor) -> dict[str, Any]:
            del batch
            for _ in range(2):
                run.optimizer.step()
            return {}

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = Trainer(
        model, optimizer, train_loader=DATA, epochs=1, scheduler=halve(optimizer), scheduler_interval="step",
        hooks=[TwiceHook()], work_dir=None, default_hooks=False,
    )  # fmt: skip
    trainer.fit()
    assert optimizer.param_groups[0]["lr"] == 1 / 64


def test_named_models_train_with_a_step_function() -> None:
    def step_fn(models: Any, batch: torch.Tensor) -> torch.Tensor:
        return models["G"](batch).square().mean()  # type: ignore[no-any-return]

    trainer = build(step_fn=step_fn, optimizers=1, val_loader=DATA, accumulate=3)
    assert "train: 3 batches" in trainer.check()
    run = trainer.fit()
    assert (run.steps_done, run.optimizer_steps()) == (2, {"steps/G": 2})
    assert run.metrics.results["val/loss"] >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "optimizer: the default step trains one loss with one optimizer, got G, D. Register a hook with a "
         "`train_step(run, batch)` that steps them, or write a loop with `bus.run`."),
        ({"optimizers": 1}, "model: the default steps call one model, got G, D. Pass step_fn(models, batch), or "
         "register a hook with `train_step`."),
        ({"hooks": (GanHook(),), "val_loader": DATA}, "or register a hook with `val_step`."),
    ],
)  # fmt: skip
def test_missing_step_is_an_error_before_training(options: dict[str, Any], message: str) -> None:
    trainer = build(*options.pop("hooks", ()), **options)
    for start in (trainer.fit, trainer.check):
        with pytest.raises(ConfigError) as caught:
            start()
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"accumulate": 2},
            "accumulate: has no effect with several optimizers, got 2. Implement it in the `train_step`",
        ),
        ({"clip_grad_norm": 1.0}, "clip_grad_norm: has no effect with several optimizers, got 1.0."),
        ({"precision": "fp16"}, "precision: has no effect with several optimizers, got 'fp16'."),
    ],
)
def test_setting_of_the_default_step_is_refused_with_several_optimizers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(GanHook(), **options)
    assert message in str(caught.value)


def test_named_models_of_several_ranks_are_wrapped_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookbus.trainer.arguments.world_size", lambda: 2)
    with pytest.raises(ConfigError, match="distributed: named models require 'none', got 'ddp'"):
        build(GanHook())


def test_lists_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters())] * 2
    with pytest.raises(ConfigError, match="optimizer: should have a method step.*, got a list of SGD, SGD. Pass a map"):
        Trainer(model, optimizers, work_dir=tmp_path)  # type: ignore[arg-type]
