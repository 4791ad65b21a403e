"""Values that hooks log during validations: they are results before any monitor reads them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import MetricError, RequestError
from hookbus.metrics.results import Metrics
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook, read_jsonl
from hookbus_schedule import ParamSchedulerHook
from tests import toys

SCORES = [0.5, 0.75, 0.25, 0.25]
"""Score of each validation: the best is the second, and the third does not improve."""


class Score(Hook):
    """Log a score at one point of every validation.

    Args:
        point: after_val_iter, after_val_epoch or after_val.
    """

    provided_metrics = ("score",)

    def __init__(self, point: str, **settings: Any) -> None:
        super().__init__(settings)
        self.point = point

    def after_val_iter(self, run: Run) -> None:
        self._log(run, "after_val_iter")

    def after_val_epoch(self, run: Run) -> None:
        self._log(run, "after_val_epoch")

    def after_val(self, run: Run) -> None:
        self._log(run, "after_val")

    def _log(self, run: Run, point: str) -> None:
        if point == self.point:
            run.log(score=torch.tensor(SCORES[run.current("epoch") - 1]))


def build_hooks(score: Score, *, is_first: bool) -> list[Hook]:
    monitors = [
        EarlyStoppingHook(monitor="val/score", mode="max", patience=1, restore_best_weights=False),
        CheckpointHook(interval=10, save_best=True, best_metric="val/score", rule="greater"),
        EvalHook(interval=1, metric="val/score", save_best=True, rule="greater"),
        EMAHook(momentum=0.5),
        JsonlHook(interval=1),
    ]
    return [score, *monitors] if is_first else [*monitors, score]


def check_decisions(run: Run, work_dir: Path) -> None:
    """Check that early stopping, best checkpoints and the log have read the scores."""
    assert (run.outcome, run.epochs_done) == ("stopped", 3)
    assert run.stop_reasons == ["early_stopping: val/score has not improved on 0.75 (epoch 2) in 1 validation"]
    best = run.best["val/score"]
    assert (best.value, best.epoch, best.weights) == (0.75, 2, "averaged")
    rows = [row["values"] for row in read_jsonl(work_dir / "logs" / "metrics.jsonl") if row["kind"] == "val"]
    assert [values["val/score"] for values in rows if "val/score" in values] == SCORES[:3]


@pytest.mark.parametrize("point", ["after_val_iter", "after_val_epoch", "after_val"])
@pytest.mark.parametrize(("is_first", "priority"), [(True, 0), (False, 100), (False, 0)])
def test_monitors_read_logged_values_in_any_order(point: str, is_first: bool, priority: int, tmp_path: Path) -> None:
    hooks = build_hooks(Score(point, priority=priority), is_first=is_first)
    run = toys.trainer(*hooks, val_loader=toys.pairs(2), epochs=4, work_dir=tmp_path / "run").fit()

    check_decisions(run, tmp_path / "run")


@pytest.mark.parametrize("point", ["after_val_epoch", "after_val"])
@pytest.mark.parametrize("emits", [False, True])
def test_monitors_of_a_custom_loop_read_logged_values(point: str, emits: bool, tmp_path: Path) -> None:
    hooks = build_hooks(Score(point, priority=0), is_first=False)
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = HookBus(hooks)

    def validate() -> dict[str, float]:
        return {"loss": 1.0}

    options: dict[str, Any] = {"validate": validate, "epochs": 4, "work_dir": tmp_path / "run", "seed": 0}
    if emits:  # `EvalHook` would request validations of its own
        bus.unregister("eval")
    with bus.run(model=model, optimizer=optimizer, **options) as run:
        for _ in toys.run_custom_loop(bus, run, toys.pairs(2), model, optimizer):
            if emits:
                for name in ("before_val", "before_val_epoch", "after_val_epoch", "after_val"):
                    bus.emit(name)
    check_decisions(run, tmp_path / "run")


def test_values_of_batches_are_averaged_over_samples() -> None:
    bus = HookBus()
    bus.on("after_val_iter")(lambda run, batch: run.log(first=batch[0, 0]))
    with bus.run() as run:
        bus.emit("before_val")
        for batch in (torch.ones(3, 1), torch.full((1, 1), 5.0)):
            bus.emit("after_val_iter", batch=batch)
        bus.emit("after_val")
    assert dict(run.metrics.results) == {"val/first": 2.0}  # (3 * 1 + 1 * 5) / 4


@pytest.mark.parametrize("point", ["after_val_iter", "after_val_epoch"])
def test_values_of_named_loaders_are_separate(point: str) -> None:
    trainer = toys.trainer(val_loader={"a": toys.pairs(1), "b": toys.pairs(2)})
    trainer.bus.on(point)(lambda run, dataloader_name: run.log({f"val/{dataloader_name}/x": 1.0, "y": 2.0}))
    trainer.bus.on("after_val", name="whole")(lambda run: run.log({"z": 3.0, "val/a/z": 4.0}))
    results = dict(trainer.validate())

    logged = {name: value for name, value in results.items() if not name.endswith("loss")}
    assert logged == {"val/a/x": 1, "val/a/y": 2, "val/b/x": 1, "val/b/y": 2, "val/z": 3, "val/a/z": 4}


def test_values_of_a_test_are_results() -> None:
    trainer = toys.trainer(test_loader=toys.pairs(1))
    trainer.bus.on("after_test_iter", name="batch")(lambda run: run.log({"test/x": 1}))
    trainer.bus.on("after_test_epoch", name="loader")(lambda run: run.log(y=2))
    trainer.bus.on("after_test", name="whole")(lambda run: run.log(z=3))
    results = trainer.test()

    assert [results[f"test/{name}"] for name in "xyz"] == [1, 2, 3]


@pytest.mark.parametrize("is_hook", [False, True])
def test_plateau_scheduler_steps_with_a_logged_value(is_hook: bool) -> None:
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"mode": "max", "factor": 0.5, "patience": 0}
    options: dict[str, Any] = {"scheduler": ReduceLROnPlateau(optimizer, **settings), "scheduler_monitor": "val/score"}
    hooks: list[Hook] = [Score("after_val", priority=0)]
    if is_hook:
        options = {}
        hooks.insert(0, ParamSchedulerHook(schedulers=[{"type": "ReduceLROnPlateau", "monitor": "score", **settings}]))
    toys.trainer(*hooks, model=model, optimizer=optimizer, val_loader=toys.pairs(1), epochs=4, **options).fit()

    assert optimizer.param_groups[0]["lr"] == 0.25  # halved after the third and the fourth validation


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
def test_requested_results_are_delivered_by_name_of_the_hook(order: tuple[str, ...]) -> None:
    class Reader(Hook):
        def after_val(self, run: Run) -> None:
            run.log({f"from {self.name}": 1.0})
            run.request_results(lambda metrics: seen.append((self.name, dict(metrics), run.validating)))

    seen: list[Any] = []
    bus = HookBus([Reader(name=name) for name in order])
    with bus.run(validate=lambda: {"loss": 2.0}) as run:
        run.validate()
        results = {"val/loss": 2.0, **{f"val/from {name}": 1.0 for name in "abc"}}
        assert seen == [(name, results, True) for name in "abc"]
        with pytest.raises(RequestError, match="^loop requested the results of a validation, but none is in progress"):
            run.request_results(seen.append)


def test_results_that_the_loop_passes_at_the_end_are_requested_results() -> None:
    seen: list[Metrics] = []
    bus = HookBus()
    bus.on("after_val")(lambda run: run.request_results(seen.append))
    with bus.run() as run:
        bus.emit("after_val", metrics={"loss": 0.5})
        bus.emit("before_val")
        bus.emit("after_val", metrics={"val/loss": 0.25})
    assert [dict(metrics) for metrics in seen] == [{"val/loss": 0.5}, {"val/loss": 0.25}]
    assert dict(run.metrics.results) == {"val/loss": 0.25}


class TestRefusedNames:
    @pytest.mark.parametrize("point", ["after_val_iter", "after_val_epoch", "after_val"])
    @pytest.mark.parametrize("name", ["train/x", "test/x"])
    def test_prefix_of_another_stage_is_refused(self, point: str, name: str) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1))
        trainer.bus.on(point)(lambda run: run.log(**{name: 1}))
        with pytest.raises(MetricError) as raised:
            trainer.validate()

        assert str(raised.value) == (
            f"run.log: the prefix does not denote the validation in progress, got {name!r}. Log 'x', which becomes "
            "'val/x'."
        )

    @pytest.mark.parametrize("name", ["val/b/x", "b/x", "val/x"])
    def test_name_of_another_loader_is_refused(self, name: str) -> None:
        trainer = toys.trainer(val_loader={"a": toys.pairs(1), "b": toys.pairs(1)})
        trainer.bus.on("after_val_iter")(lambda run: run.log({name: 1}))
        with pytest.raises(MetricError, match=f"the validation loader 'a' in progress, got '{name}'. Log 'x', which"):
            trainer.validate()

    @pytest.mark.parametrize("stage", ["val", "test"])
    def test_prefix_of_a_result_is_refused_in_training(self, stage: str) -> None:
        trainer = toys.trainer(epochs=1)
        trainer.bus.on("after_train_iter")(lambda run: run.log({f"{stage}/x": 1}))
        with pytest.raises(MetricError, match=rf"is in progress, got '{stage}/x'. Log it between before_{stage} and"):
            trainer.fit()

    def test_second_value_of_a_result_is_refused(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1))
        trainer.bus.on("after_val")(lambda run: run.log(loss=1))
        with pytest.raises(MetricError, match="the validation already has the result 'val/loss', got a second value"):
            trainer.validate()

    @pytest.mark.parametrize("point", ["before_val_iter", "after_val_iter"])
    def test_second_value_of_a_batch_is_refused(self, point: str) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1))
        trainer.bus.on(point)(lambda run: run.log(loss=1))
        with pytest.raises(MetricError, match="the batch already has a value of 'val/loss', got a second one. Log it"):
            trainer.validate()

    def test_value_outside_the_validation_of_a_run_is_refused(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1))
        trainer.bus.on("before_run")(lambda run: run.log(x=1))
        with pytest.raises(MetricError, match="in this run of mode 'val', got 'x'. Log between before_val and after_"):
            trainer.validate()


def test_logged_values_of_a_sanity_check_are_discarded() -> None:
    trainer: Trainer = toys.trainer(Score("after_val"), val_loader=toys.pairs(1), epochs=0, validate_first=True)
    run = trainer.fit()

    assert dict(run.metrics.results) == {}
