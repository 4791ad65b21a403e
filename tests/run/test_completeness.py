"""A checkpoint contains everything that is trained, or the save is refused with the names of what is missing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus
from hookbus._run import step_hooks
from hookbus.errors import CheckpointError
from hookbus_checkpoint import CheckpointHook

SGD, Adam = torch.optim.SGD, torch.optim.Adam


def build() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"G": nn.Linear(2, 1), "D": nn.Linear(2, 1)}


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


class Loop:
    """Loop of three iterations that calls a function in each of them."""

    def __init__(self, directory: Path, *hooks: Hook, **options: Any) -> None:
        self.bus = HookBus([CheckpointHook(), *hooks])
        self.options = {"epochs": 1, "work_dir": directory, **options}
        self.iterations = 0

    def train(self, work: Any) -> None:
        with self.bus.run(**self.options):
            self.bus.emit("before_train_epoch")
            for _ in range(3):
                self.bus.emit("before_train_iter")
                work()
                self.iterations += 1
                self.bus.emit("after_train_iter")
            self.bus.emit("after_train_epoch")


def refusal(message: str) -> AbstractContextManager[Any]:
    return pytest.raises(CheckpointError, match=message)


def test_unknown_optimizer_is_refused_after_the_first_iteration(tmp_path: Path) -> None:
    models = build()
    known, unknown = SGD(models["G"].parameters(), lr=0.1), Adam(models["D"].parameters())
    loop = Loop(tmp_path, model=models["G"], optimizer=known)

    def work() -> None:
        step(models["G"], known)
        step(models["D"], unknown)

    with refusal(
        r"incomplete\. Adam has stepped, but is no optimizer of the run\. Its parameters: parameter 0 of group 0 with "
        r"shape \(1, 2\), parameter 1 of group 0 with shape \(1,\)\. Pass all optimizers and their models"
    ):
        loop.train(work)
    assert loop.iterations == 1
    assert not list((tmp_path / "checkpoints").glob("*.pth"))


def test_unknown_optimizer_of_known_parameters_is_refused_with_their_names(tmp_path: Path) -> None:
    models = build()
    unknown = SGD(models["D"].parameters(), lr=0.1)
    loop = Loop(tmp_path, model=models)
    with refusal(r"SGD has stepped, .* Its parameters: D\.weight, D\.bias\. "):
        loop.train(lambda: step(models["D"], unknown))


def test_optimizer_that_steps_for_the_first_time_later_is_refused(tmp_path: Path) -> None:
    models, losses = build(), []
    known, late = (SGD(model.parameters(), lr=0.1) for model in models.values())
    loop = Loop(tmp_path, model=models, optimizer=known)

    def work() -> None:
        losses.append(step(models["G"], known))
        if len(losses) == 3:
            step(models["D"], late)

    with refusal(r"Its parameters: D\.weight, D\.bias\. "):
        loop.train(work)
    assert loop.iterations == 3


def test_parameters_in_no_model_are_refused_with_their_optimizer(tmp_path: Path) -> None:
    models, scale = build(), nn.Parameter(torch.ones(2))
    named = [*models["G"].named_parameters(), ("scale", scale)]
    loop = Loop(tmp_path, model=models, optimizer={"all": SGD(named, lr=0.1)})
    with refusal(r"optimizer 'all': 1 of its parameters are in no model of the run: scale\. Pass all models"):
        loop.train(lambda: None)
    loop = Loop(tmp_path, model=models["G"], optimizer=SGD([*models["D"].parameters(), scale], lr=0.1))
    with refusal(
        r"optimizer: 3 of its parameters are in no model of the run: parameter 0 of group 0 with shape \(1, 2\)"
    ):
        loop.train(lambda: None)


class ScaleHook(Hook):
    """Hook with an own parameter, which it saves if `saves` is set."""

    def __init__(self, scale: nn.Parameter, *, saves: bool) -> None:
        super().__init__()
        self.scale, self.saves = scale, saves

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale.detach().clone()} if self.saves else {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("place", ["loss", "state", "number", "module", "hook", "listener", "nowhere"])
def test_parameter_is_saved_in_any_part_of_the_checkpoint(place: str, tmp_path: Path) -> None:
    models, scale = build(), nn.Parameter(torch.full((1,), 0.3))
    holder = nn.ParameterList([scale])
    optimizer = SGD([*models["G"].parameters(), scale], lr=0.1)
    options: dict[str, Any] = {"model": models, "optimizer": optimizer}
    match place:
        case "loss":
            options["loss"] = holder
        case "state":
            options["state"] = {"scale": (lambda: {"value": scale.clone()}, print)}
        case "number":
            options["state"] = {"scale": (lambda: [scale.item()], print)}
        case "module":
            options["state"] = {"scale": holder}
    loop = Loop(tmp_path, ScaleHook(scale, saves=place == "hook"), **options)
    if place == "listener":

        def add(checkpoint: dict[str, Any]) -> None:
            checkpoint["scale"] = scale.detach()

        loop.bus.on("before_save_checkpoint")(add)
    with refusal("are in no model") if place == "nowhere" else nullcontext():
        loop.train(lambda: step(models["G"], optimizer))
    assert (tmp_path / "checkpoints/last.pth").exists() == (place != "nowhere")


@pytest.mark.parametrize("place", ["state", "hook"])
def test_optimizer_in_another_part_of_the_checkpoint_is_accepted(place: str, tmp_path: Path) -> None:
    models = build()
    known, other = (Adam(model.parameters()) for model in models.values())

    class OwnerHook(Hook):
        def state_dict(self) -> dict[str, Any]:
            return {
                "D": {name: value.clone() for name, value in models["D"].state_dict().items()},
                "optimizer": other.state_dict(),
            }

    options: dict[str, Any] = {"state": {"D": models["D"], "other": other}} if place == "state" else {}
    hooks = [OwnerHook()] if place == "hook" else []

    def work() -> None:
        step(models["G"], known)
        step(models["D"], other)

    Loop(tmp_path, *hooks, model=models["G"], optimizer=known, **options).train(work)


def test_optimizer_in_state_may_have_other_parameters(tmp_path: Path) -> None:
    probe = nn.Linear(2, 1)
    optimizer = SGD(probe.parameters(), lr=0.1)
    Loop(tmp_path, state={"probe": optimizer}).train(lambda: step(probe, optimizer))


def test_discarded_and_validating_optimizers_are_not_checked(tmp_path: Path) -> None:
    models = build()
    optimizer = SGD(models["G"].parameters(), lr=0.1)
    probe = nn.Linear(2, 1)
    probe_optimizer = SGD(probe.parameters(), lr=0.1)

    def validate() -> dict[str, float]:
        with torch.enable_grad():
            step(probe, probe_optimizer)
        return {"accuracy": 1.0}

    loop = Loop(tmp_path, model=models, optimizer=optimizer, validate=validate)

    def work() -> None:
        step(models["G"], optimizer)
        clone = build()["G"]
        step(clone, SGD(clone.parameters(), lr=0.1))  # the inner loop of meta-learning
        loop.bus.current.request_validation()

    loop.train(work)


class NestingSGD(SGD):
    """Optimizer around another one, in the style of sharpness-aware minimization."""

    def __init__(self, parameters: Any, *, momentum: float) -> None:
        super().__init__(parameters, lr=0.1, momentum=momentum)
        self.base = SGD(self.param_groups, lr=0.1, momentum=momentum)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


class SavingSGD(NestingSGD):
    """Optimizer that saves the state of the inner one."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "base": self.base.state_dict()}


@pytest.mark.parametrize(
    ("optimizer", "momentum", "is_refused"),
    [(NestingSGD, 0.0, False), (NestingSGD, 0.9, True), (SavingSGD, 0.9, False)],
)
def test_optimizer_inside_of_a_known_one_is_refused_if_its_state_is_lost(
    optimizer: Any, momentum: float, is_refused: bool, tmp_path: Path
) -> None:
    model = build()["G"]
    instance = optimizer(model.parameters(), momentum=momentum)
    with refusal(r"SGD has stepped, .* weight, bias\. ") if is_refused else nullcontext():
        Loop(tmp_path, model=model, optimizer=instance).train(lambda: step(model, instance))


def test_run_without_checkpoints_is_not_checked() -> None:
    models = build()
    optimizer = SGD(models["D"].parameters(), lr=0.1)
    bus = HookBus()
    with bus.run(model=models["G"], optimizer=SGD(models["D"].parameters(), lr=0.1)):
        step(models["D"], optimizer)
        bus.emit("after_train_iter")
        assert step_hooks._handle is None


def test_optimizer_of_another_active_run_is_known(tmp_path: Path) -> None:
    models = build()
    outer, inner = (SGD(model.parameters(), lr=0.1) for model in models.values())
    loop = Loop(tmp_path / "outer", model=models["G"], optimizer=outer)

    def work() -> None:
        step(models["G"], outer)
        if not loop.iterations:
            Loop(tmp_path / "inner", model=models["D"], optimizer=inner).train(lambda: step(models["D"], inner))

    loop.train(work)
    assert step_hooks._handle is None
