"""Averages of any hook are used like those of the EMA hook: in validations, tests, best files and early stopping."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.checkpoint.state import read_checkpoint
from hookbus.errors import HookError
from hookbus.hook import Hook
from hookbus.trainer.trainer import Trainer
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from tests.toys import pairs


class AveragingHook(Hook):
    """Hook of another package with the two required methods. The average is half of the latest weights."""

    def before_run(self, run: Run) -> None:
        if run.iters_done == 0:
            self.average: dict[str, Tensor] = {}
        run.weights.provide(self)

    def after_optimizer_step(self, run: Run) -> None:
        assert run.model is not None
        self.average = {name: value.detach() / 2 for name, value in run.model.state_dict().items()}

    def averaged(self) -> dict[str, Tensor] | None:
        return self.average or None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        model = self.run.model
        assert model is not None
        raw = copy.deepcopy(model.state_dict())
        model.load_state_dict(self.average or raw)
        try:
            yield
        finally:
            model.load_state_dict(raw)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


class ProvideAndWrap(AveragingHook):
    """Hook that is also registered as a context of validations, and keeps the raw weights in one attribute."""

    stored: dict[str, Tensor] | None = None

    def before_run(self, run: Run) -> None:
        super().before_run(run)
        run.around_validation(self.applied)

    def raw(self) -> dict[str, Tensor] | None:
        return self.stored

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        assert self.run.model is not None
        self.stored = copy.deepcopy(self.run.model.state_dict())
        with super().applied():
            yield
        self.stored = None


class RecordWeights(Hook):
    """Record the raw weights and those in the model at each validation and test."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[Tensor] = []
        self.evaluated: list[Tensor] = []

    def after_val(self, run: Run, model: nn.Linear) -> None:
        self.raw.append(run.weights.raw()["weight"].detach().clone())
        self.evaluated.append(model.weight.detach().clone())

    def before_test(self, model: nn.Linear) -> None:
        self.evaluated.append(model.weight.detach().clone())


def build(*hooks: Hook, work_dir: Path | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    settings = {"train_loader": pairs(3), "val_loader": pairs(2), "epochs": 3, "default_hooks": False, "seed": 0}
    return Trainer(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        loss_fn=nn.functional.cross_entropy,
        hooks=list(hooks),
        work_dir=work_dir,
        **settings | options,
    )


def compute_loss(weights: dict[str, Tensor]) -> float:
    model = nn.Linear(4, 2)
    model.load_state_dict(weights)
    with torch.no_grad():
        return sum(float(nn.functional.cross_entropy(model(x), y)) for x, y in pairs(2)) / 2


@pytest.mark.parametrize("hook", [AveragingHook, ProvideAndWrap])
class TestTrainer:
    def test_validations_and_tests_use_the_averages_and_restore_the_raw_weights(self, hook: Any) -> None:
        record = RecordWeights()
        trainer = build(hook(), record, test_loader=pairs(1))
        trainer.fit()
        assert all(torch.equal(2 * used, raw) for used, raw in zip(record.evaluated, record.raw, strict=True))
        final = trainer.model.weight.detach().clone()  # type: ignore[union-attr, operator]
        assert torch.equal(record.raw[-1], final)
        trainer.test()
        assert torch.equal(2 * record.evaluated[-1], final)

    def test_best_file_contains_the_averages_that_achieved_the_score(self, hook: Any, tmp_path: Path) -> None:
        saver = CheckpointHook(save_best=True, best_metric="loss", publish=True)
        run = build(hook(), saver, work_dir=tmp_path).fit()
        best = run.best["val/loss"]
        assert best.path is not None
        checkpoint = read_checkpoint(best.path)
        assert checkpoint["meta"]["best_weights"] == {"val/loss": "averaged"}
        assert compute_loss(checkpoint["ema_state_dict"]) == pytest.approx(best.value)
        assert torch.equal(checkpoint["state_dict"]["weight"], 2 * checkpoint["ema_state_dict"]["weight"])
        assert compute_loss(load_file(tmp_path / "checkpoints/model.safetensors")) == pytest.approx(best.value)

    @pytest.mark.parametrize("source", ["memory", "file"])
    def test_early_stopping_restores_raw_and_averaged_weights(self, source: str, hook: Any, tmp_path: Path) -> None:
        stopping = EarlyStoppingHook(monitor="val/loss", mode="max", patience=9, restore_best_weights=source)
        averaging, record = hook(), RecordWeights()
        saver = CheckpointHook(save_best=True, best_metric="loss", rule="greater")
        trainer = build(averaging, record, stopping, saver, work_dir=tmp_path)
        trainer.fit()
        best = (stopping.best_epoch or 0) - 1
        assert best < 2
        assert torch.equal(trainer.model.weight, record.raw[best])  # type: ignore[arg-type]
        assert torch.equal(averaging.average["weight"], record.evaluated[best])

    def test_resumed_run_has_the_averages_of_the_uninterrupted_one(self, hook: Any, tmp_path: Path) -> None:
        build(hook(), CheckpointHook(save_best=False), work_dir=tmp_path, epochs=1).fit()
        resumed, whole = RecordWeights(), RecordWeights()
        build(hook(), CheckpointHook(save_best=False), resumed, work_dir=tmp_path, resume="auto").fit()
        build(hook(), whole).fit()
        assert all(map(torch.equal, resumed.evaluated, whole.evaluated[1:]))
        assert len(resumed.evaluated) == 2


def test_custom_loop_validates_with_the_averages_of_a_hook() -> None:
    model, record = nn.Linear(4, 2), RecordWeights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    bus = HookBus(hooks=[AveragingHook(), record])
    with bus.run(model=model, optimizer=optimizer, epochs=1, validate=lambda: {"loss": 1.0}) as run:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        bus.emit("before_val")  # of a validation of the loop
        assert torch.equal(2 * model.weight, run.weights.raw()["weight"])
        bus.emit("after_val")
        run.validate()
    assert torch.equal(2 * record.evaluated[-1], model.weight)


def test_second_run_of_a_bus_uses_the_averages_of_that_run() -> None:
    record = RecordWeights()
    bus = HookBus(hooks=[AveragingHook(), record])
    for _ in range(2):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with bus.run(model=model, optimizer=optimizer, epochs=1, validate=lambda: {"loss": 1.0}, fresh=True) as run:
            run.validate()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            run.validate()
        assert torch.equal(record.evaluated[-2], record.raw[-2])  # before the first average
        assert torch.equal(2 * record.evaluated[-1], model.weight)


def test_average_of_a_hook_that_is_unregistered_is_no_longer_used() -> None:
    hook, record = AveragingHook(), RecordWeights()
    trainer = build(hook, record, test_loader=pairs(1))
    trainer.fit()
    trainer.bus.unregister(hook)
    trainer.test()
    assert torch.equal(record.evaluated[-1], trainer.model.weight)  # type: ignore[arg-type]
    assert trainer.bus.current.weights.averaged() is None


class Third(AveragingHook):
    """Average that is a third of the latest weights."""

    def after_optimizer_step(self, run: Run) -> None:
        assert run.model is not None
        self.average = {name: value.detach() / 3 for name, value in run.model.state_dict().items()}


class TestSeveralHooks:
    def test_each_average_has_results_and_is_in_the_best_file(self, tmp_path: Path) -> None:
        saver = CheckpointHook(save_best=True, best_metric="val/third/loss", publish=True)
        trainer = build(AveragingHook(name="half"), Third(name="third"), saver, work_dir=tmp_path)
        run = trainer.fit()
        best = run.best["val/third/loss"]
        assert best.path is not None
        checkpoint = read_checkpoint(best.path)
        assert checkpoint["meta"]["best_weights"] == {"val/third/loss": "averaged/third"}
        assert compute_loss(checkpoint["averages"]["third"]) == pytest.approx(best.value)
        assert compute_loss(load_file(tmp_path / "checkpoints/model.safetensors")) == pytest.approx(best.value)
        averaged = checkpoint["ema_state_dict"]
        assert compute_loss(averaged) == pytest.approx(checkpoint["meta"]["metrics"]["val/loss"])

    def test_average_of_a_hook_that_leaves_has_no_results(self) -> None:
        class Leave(Hook):
            def before_epoch(self, run: Run) -> None:
                if run.epochs_done == 1:
                    run.bus.unregister("half")

        names: list[list[str]] = []

        class Record(Hook):
            def after_val(self, metrics: dict[str, float]) -> None:
                names.append(list(metrics))

        build(AveragingHook(name="half"), Third(name="third"), Leave(), Record(), epochs=2).fit()
        assert names == [["val/loss", "val/third/loss"], ["val/loss"]]


class TestErrors:
    @pytest.mark.parametrize("missing", ["averaged", "applied"])
    def test_provider_without_a_method_is_an_error_with_its_name(self, missing: str) -> None:
        provider = type("Provider", (), dict.fromkeys({"averaged", "applied"} - {missing}, print))()

        class Provide(Hook):
            def before_run(self, run: Run) -> None:
                run.weights.provide(provider)

        with pytest.raises(HookError, match=f"Provider has no method {missing}"):
            build(Provide()).fit()

    def test_second_provider_of_a_hook_is_an_error(self) -> None:
        class Twice(AveragingHook):
            def before_run(self, run: Run) -> None:
                super().before_run(run)
                run.weights.provide(AveragingHook())

        with pytest.raises(
            HookError, match="the hook 'a' and the hook 'a' both average the weights. Use only one prov"
        ):
            build(Twice(name="a")).fit()

    def test_averages_under_other_names_are_an_error_that_lists_them(self) -> None:
        class OtherNames(AveragingHook):
            def averaged(self) -> dict[str, Tensor]:
                return {f"module.{name}": value for name, value in self.average.items()} | {"bias": torch.ones(1)}

        with pytest.raises(HookError, match=r"got module.weight, module.bias, bias \(3 of 3 do not match\)"):
            build(OtherNames(), EarlyStoppingHook(restore_best_weights=True)).fit()
