"""Named models, optimizers and schedulers of a run, and the objects that a run refuses on entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from hookbus import HookBus
from hookbus.errors import ConfigError

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
