"""Named models, optimizers and schedulers of a run, and the objects that a run refuses on entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from hookbus import Hook, HookBus, Run
from hookbus.errors import CheckpointError, ConfigError, LoopError, PointError, RequestError
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook, read_jsonl
from hookbus_schedule import ParamSchedulerHook
from tests import toys

G, D = nn.Linear(4, 1), nn.Linear(4, 1)
SGD_G, SGD_D = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (G, D))
STEP_G, STEP_D = (StepLR(optimizer, 1) for optimizer in (SGD_G, SGD_D))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": [G, D]}, 'model: expected a torch.nn.Module, got a list of Linear, Linear. Pass a mapping of names, '
         'such as model={"G": ..., "D": ...}.'),
        ({"model": {"G": G, "D": SGD_D}}, "model['D']: expected a torch.nn.Module, got SGD."),
        ({"model": nn.Linear}, "model: expected a torch.nn.Module, got the class Linear."),
        ({"model": {}}, "model: expected at least one object, got an empty mapping. Pass None for no model."),
        ({"model": {"a.b": G}}, "model: names must be identifiers and no attributes of nn.ModuleDict, got 'a.b'. "
         "Rename them."),
        ({"model": {"keys": G, 3: D}}, "names must be identifiers and no attributes of nn.ModuleDict, got 'keys', 3."),
        ({"model": {"module": G}}, "got 'module'."),
        ({"model": {"G": G, "D": G}}, "model: 'G' and 'D' are the same Linear. Pass each object once."),
        ({"optimizer": [SGD_G, SGD_D]}, "optimizer: should have a method step(), got a list of SGD, SGD. Pass a "
         'mapping of names, such as optimizer={"G": ..., "D": ...}.'),
        ({"optimizer": {"G": SGD_G, "D": SGD_G}}, "optimizer: 'G' and 'D' are the same SGD."),
        ({"optimizer": {"G": torch.optim.SGD}}, "optimizer['G']: should be an instance, got the class SGD. Pass "
         "SGD(...)."),
        ({"scheduler": (STEP_G, STEP_D)}, "scheduler: should have a method step(), got a tuple of StepLR, StepLR."),
        ({"scheduler": {"D": "step"}}, "scheduler['D']: should have a method step(), got 'step'."),
        ({"optimizer": SGD_G, "scheduler": {"G": STEP_G, "D": STEP_D}}, "scheduler['D']: StepLR schedules an optimizer "
         'that the run does not have. Pass that optimizer as well, by name: optimizer={"G": ..., "D": ...}.'),
        ({"loss": torch.nn.functional.mse_loss}, "loss: expected a torch.nn.Module, got function. Omit `loss`"),
        ({"loss": [nn.L1Loss()]}, "loss: expected a torch.nn.Module, got a list of L1Loss. Omit `loss` for a function "
         "without parameters, and pass several modules as one nn.ModuleDict."),
        ({"state": [1]}, 'state: expected a mapping, got a list of int. Pass state={"name": (get, set)}.'),
        ({"state": {"": G}}, "state: names must be strings that are not empty, got ''."),
        ({"state": {"hidden": torch.zeros(1)}}, "state['hidden']: expected a pair of functions (get, set) or an object "
         "with state_dict() and load_state_dict(), got Tensor."),
        ({"state": {"hidden": (lambda: 1,)}}, "state['hidden']: expected a pair of functions (get, set)"),
    ],
)  # fmt: skip
def test_invalid_objects_are_refused_before_anything_is_touched(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bus = HookBus()
    with pytest.raises(ConfigError) as caught, bus.run(work_dir=tmp_path / "run", **options):
        pass
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert len(SGD_G._optimizer_step_post_hooks) == 0


def test_named_objects_are_available_by_name() -> None:
    models: Any = {"G": G, "D": D}
    with HookBus().run(model=models, optimizer={"G": SGD_G, "D": SGD_D}, scheduler={"G": STEP_G, "D": STEP_D}) as run:
        assert isinstance(run.model, nn.ModuleDict)
        assert {name: run.model[name] for name in "GD"} == models
        assert list(run.model.state_dict()) == ["G.weight", "G.bias", "D.weight", "D.bias"]
        assert run.optimizer["D"] is SGD_D
        assert run.optimizers == {"G": SGD_G, "D": SGD_D}
        assert run.schedulers == {"G": STEP_G, "D": STEP_D}
        with pytest.raises(TypeError):
            run.optimizer["E"] = SGD_G


def test_single_objects_have_no_name() -> None:
    with HookBus().run(model=G, optimizer=SGD_G, scheduler=STEP_G) as run:
        assert (run.model, run.optimizer, run.scheduler) == (G, SGD_G, STEP_G)
        assert (run.optimizers, run.schedulers) == ({"": SGD_G}, {"": STEP_G})
        assert run.optimizer_steps() == {}
    with HookBus().run() as run:
        assert (run.optimizers, run.schedulers) == ({}, {})


def test_scheduler_of_an_optimizer_inside_another_one_is_accepted() -> None:
    class Wrapping(torch.optim.Optimizer):
        """Optimizer in the style of sharpness-aware minimization."""

        def __init__(self, base: torch.optim.Optimizer) -> None:
            super().__init__(base.param_groups, {})
            self.base = base
            self.param_groups = base.param_groups

        def step(self, closure: Any = None) -> Any:
            return self.base.step(closure)

    optimizer = Wrapping(torch.optim.SGD(G.parameters(), lr=0.1))
    with HookBus().run(model=G, optimizer=optimizer, scheduler=StepLR(optimizer.base, 1)) as run:
        assert run.learning_rates() == {"lr": 0.1}


def test_validation_switches_named_models_and_the_loss() -> None:
    loss, seen = nn.Dropout(), []
    models = {"G": nn.Sequential(nn.Dropout()), "D": nn.Dropout().eval()}
    modules = [models["G"], models["G"][0], models["D"], loss]

    def validate() -> dict[str, float]:
        seen.append([module.training for module in modules])
        return {"loss": 1.0}

    with HookBus().run(model=models, loss=loss, validate=validate) as run:
        run.validate()
        assert [module.training for module in modules] == [True, True, False, True]
    assert seen == [[False] * 4]


class Counter(Hook):
    """Count iterations; the count is its state."""

    count = 0

    def after_train_iter(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def build_hooks() -> list[Hook]:
    return [
        Counter(),
        CheckpointHook(interval=1, best_metric="val/loss"),
        EarlyStoppingHook(monitor="val/loss", patience=1),
        ParamSchedulerHook(schedulers=[{"type": "ExponentialLR", "gamma": 0.5}]),
        EMAHook(momentum=0.5),
        JsonlHook(interval=1),
    ]


def train(work_dir: Path) -> tuple[HookBus, nn.Module]:
    """Train for two epochs of two iterations."""
    model = toys.net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bus = HookBus(build_hooks())
    options: dict[str, Any] = {"validate": lambda: {"loss": 1.0}, "epochs": 2, "work_dir": work_dir, "seed": 0}
    with bus.run(model=model, optimizer=optimizer, **options) as run:
        for _ in toys.run_custom_loop(bus, run, toys.pairs(2), model, optimizer):
            run.request_validation()
    return bus, model


def read_files(work_dir: Path) -> dict[str, bytes]:
    """Return the files of a run except its log."""
    files = [path for path in sorted(work_dir.rglob("*")) if path.is_file() and path.name != "metrics.jsonl"]
    return {str(path.relative_to(work_dir)): path.read_bytes() for path in files}


@pytest.mark.parametrize("mode", ["val", "test"])
def test_run_emits_the_events_of_its_evaluation_only(mode: Any) -> None:
    bus = RecordingBus()
    with bus.run(mode=mode, validate=lambda: {"loss": 0.5}) as run:
        results = run.validate() if mode == "val" else run.test()

    points = ["before_run", "before_val", "before_val_epoch", "after_val_epoch", "after_val", "after_run", "cleanup"]
    assert bus.emitted_points == [point.replace("val", mode) for point in points]
    assert bus.get_arguments("before_run")[0]["mode"] == mode
    assert dict(results) == {f"{mode}/loss": 0.5}
    assert (run.outcome, run.iters_done, run.epochs_done, run.steps_done) == ("finished", 0, 0, 0)


@pytest.mark.parametrize("mode", ["val", "test"])
@pytest.mark.parametrize("emits", [False, True])
def test_resumed_evaluation_changes_no_file_of_the_training(mode: Any, emits: bool, tmp_path: Path) -> None:
    train(tmp_path / "run")
    before, rows = read_files(tmp_path / "run"), len(list(read_jsonl(tmp_path / "run/logs/metrics.jsonl")))
    model, hooks = toys.net(), build_hooks()
    bus, seen = HookBus(hooks), []

    def measure() -> dict[str, float]:
        seen.append(model[0].weight.detach().clone())
        return {"loss": 0.25}

    options: dict[str, Any] = {"work_dir": tmp_path / "run", "resume": "auto", "validate": measure}
    with bus.run(mode=mode, model=model, **options) as run:
        if emits:
            bus.emit(f"before_{mode}")
            bus.emit(f"after_{mode}", metrics=measure())
        else:
            _ = run.validate() if mode == "val" else run.test()
        run.request_stop("done")
    assert read_files(tmp_path / "run") == before
    assert (run.steps_done, run.iters_done, run.epochs_done, hooks[0].count) == (4, 4, 2, 4)
    checkpoint = torch.load(tmp_path / "run/checkpoints/last.pth", weights_only=True)
    assert torch.equal(seen[0], checkpoint["ema_state_dict"]["0.weight"])
    assert torch.equal(model[0].weight, checkpoint["state_dict"]["0.weight"])
    new = list(read_jsonl(tmp_path / "run/logs/metrics.jsonl"))[rows:]
    assert [(row["kind"], row["mode"], row["step"], row["values"]) for row in new] == [
        (mode, mode, 4, {f"{mode}/loss": 0.25})
    ]


def test_evaluation_after_a_training_of_the_bus_has_its_state(tmp_path: Path) -> None:
    bus, model = train(tmp_path / "run")
    with bus.run(mode="val", model=model, work_dir=tmp_path / "run", validate=lambda: {"loss": 0.125}) as run:
        run.validate()
    assert (run.steps_done, dict(run.metrics.results)) == (4, {"val/loss": 0.125})
    assert run.best["val/loss"].value == 1.0


def test_evaluation_without_a_checkpoint_to_resume_from_is_refused(tmp_path: Path) -> None:
    bus = HookBus([CheckpointHook()])
    with (
        pytest.raises(CheckpointError, match='^resume: no checkpoint to evaluate, got "auto" in .*run/checkpoints. Tr'),
        bus.run(mode="val", model=toys.net(), work_dir=tmp_path / "run", resume="auto"),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "vall"}, "mode: expected 'train', 'val', 'test' or 'predict', got 'vall'. Did you mean 'val'?"),
        ({"mode": "val", "epochs": 3}, "epochs: has no effect in a run of mode 'val', got 3. Remove it."),
        ({"mode": "test", "iterations": 0}, "iterations: has no effect in a run of mode 'test', got 0. Remove it."),
        ({"mode": "val", "overwrite": True}, "overwrite: has no effect in a run of mode 'val', got True. Remove it."),
        ({"mode": "val", "train_loader": []}, "train_loader: has no effect in a run of mode 'val', got list. Remove"),
        ({"mode": "val", "counts_steps": True}, "counts_steps: has no effect in a run of mode 'val', got True. Rem"),
    ],
)
def test_argument_of_training_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised, HookBus().run(**options):
        pass
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("point", ["before_train", "before_epoch", "before_train_epoch", "before_train_iter"])
def test_event_of_training_is_refused(point: str) -> None:
    bus = RecordingBus()
    with (
        pytest.raises(PointError, match=r"but the run only evaluates, got mode 'val'. Iterate over"),
        bus.run(mode="val"),
    ):
        bus.emit(point)
    assert point not in bus.emitted_points


def test_operation_of_training_is_refused() -> None:
    def request_save(run: Run) -> None:
        run.request_save("now")

    with HookBus().run(mode="test") as run:
        for operation in (lambda: run.epochs(), lambda: run.batches([1])):
            with pytest.raises(LoopError, match="the run only evaluates, got mode 'test'"):
                operation()
        with pytest.raises(
            RequestError, match="^loop requested a checkpoint in a run of mode 'test', which writes non"
        ):
            request_save(run)
