"""Services of a run."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any, get_args, get_overloads

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus
from hookbus._run.services import SERVICES, Directory, ServiceMethods, get_run_logger
from hookbus.errors import ServiceError
from hookbus.writers.writer import BusWriter, Visualizer


def test_provided_service_is_returned_and_may_be_replaced() -> None:
    run = HookBus().current
    assert run.get("tracker") is None
    assert run.get("tracker", 3) == 3
    run.provide("tracker", "first")
    run.provide("tracker", "second")
    assert run.get("tracker") == run.require("tracker") == "second"
    run.provide("model", "mine")
    assert run.get("model") == "mine"


def test_parts_of_the_run_are_services_from_the_start() -> None:
    model, loader = nn.Linear(1, 1), [1, 2]
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with HookBus().run(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        train_loader=loader,
        val_loader="v",
        config={"a": 1},
        device="cpu",
    ) as run:
        services = {name: run.get(name) for name in ("model", "optimizer", "scheduler", "train_loader", "val_loader")}
        assert services == {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "train_loader": loader,
            "val_loader": "v",
        }
        assert (run.get("config"), run.get("device")) == ({"a": 1}, "cpu")
        assert isinstance(run.get("logger"), logging.Logger)
        assert isinstance(run.get("visualizer"), Visualizer)
        assert isinstance(run.get("writer"), BusWriter)
        assert run.get("trainer") is None
        assert run.get("test_loader") is None


def test_directories_are_created_on_first_use(tmp_path: Path) -> None:
    names = ("checkpoints_dir", "logs_dir", "visualization_dir")
    with HookBus().run() as run:
        assert [run.get(name) for name in ("experiment_dir", *names)] == [None] * 4
    with HookBus().run(work_dir=tmp_path / "run") as run:
        directory = run.get("experiment_dir")
        assert directory == tmp_path / "run"
        assert [path for path in directory.iterdir() if path.is_dir()] == []
        assert [run.get(name) for name in names] == [
            directory / "checkpoints",
            directory / "logs",
            directory / "visualization",
        ]
        assert all(run.get(name).is_dir() for name in names)


def test_missing_service_raises_an_error_with_available_services(tmp_path: Path) -> None:
    with HookBus().run(model=nn.Linear(1, 1)) as run:
        run.provide("mlflow", object())
        with pytest.raises(ServiceError, match="This run has no service 'mlfow'. Did you mean 'mlflow'?"):
            run.require("mlfow")
        with pytest.raises(LookupError) as caught:
            run.require("zzz")
        listed = str(caught.value)
        assert listed.endswith("Available: config, logger, mlflow, model, visualizer, writer.")


def test_missing_service_creates_no_directories(tmp_path: Path) -> None:
    with HookBus().run(work_dir=tmp_path / "run") as run:
        with pytest.raises(ServiceError, match="checkpoints_dir, .*experiment_dir, .*logs_dir, .*visualization_dir"):
            run.require("zzz")
        assert [path for path in (tmp_path / "run").iterdir() if path.is_dir()] == []


def test_logger_may_be_replaced_by_a_service() -> None:
    run = HookBus().current
    assert run.logger is logging.getLogger("hookbus")
    run.provide("logger", mine := logging.getLogger("mine"))
    assert run.logger is run.get("logger") is mine


def test_hook_gets_services_of_its_run() -> None:
    class GetServices(Hook):
        def before_train(self) -> None:
            self.found: Any = (self.get_service("tracker"), self.get_service("nothing"))

    bus = HookBus([hook := GetServices()])
    bus.current.provide("tracker", 5)
    bus.fire("before_train")
    assert hook.found == (5, None)


def test_services_belong_to_one_run() -> None:
    bus = HookBus()
    with bus.run() as run:
        run.provide("tracker", 5)
    with bus.run() as second:
        assert second.get("tracker") is None


class TestList:
    def test_services_of_a_run_are_listed(self, tmp_path: Path) -> None:
        with HookBus().run(work_dir=tmp_path) as run:
            missing = [name for name in SERVICES if run.get(name) is None]
            assert missing == [
                *(
                    "trainer",
                    "model",
                    "train_loader",
                    "val_loader",
                    "test_loader",
                    "predict_loader",
                    "optimizer",
                    "scheduler",
                ),
                *("device", "checkpoint_saver"),
            ]

    @pytest.mark.parametrize("method", [ServiceMethods.get, ServiceMethods.require])
    def test_signatures_have_the_listed_types(self, method: Any) -> None:
        overloads = [inspect.signature(overload) for overload in get_overloads(method)][:-1]
        typed: dict[str, str] = {}
        for signature in overloads:
            annotation = signature.parameters["name"].annotation
            names = get_args(Directory) if annotation == "Directory" else [annotation[len("Literal['") : -len("']")]]
            typed |= dict.fromkeys(names, signature.return_annotation.removesuffix(" | None"))
        assert typed == {name: service.type for name, service in SERVICES.items() if service.type != "Any"}

    def test_values_have_the_listed_types(self, tmp_path: Path) -> None:
        types = {"BusWriter": BusWriter, "Visualizer": Visualizer, "Path": Path}
        with HookBus().run(work_dir=tmp_path) as run:
            values = {name: run.require(name) for name, service in SERVICES.items() if service.type in types}
        assert all(isinstance(value, types[SERVICES[name].type]) for name, value in values.items())


class Scalars(Hook):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def log_scalars(self, values: Any, step: int) -> None:
        self.seen.append((values, step))

    def log_images(self, tag: str, images: Any, caption: Any) -> None:
        self.seen.append((tag, images, caption))

    def log_config(self, config: Any) -> None:
        self.seen.append(config)


class Logging(Hook):
    def before_epoch(self, trainner: Any) -> None:
        trainner.logger.write_scalar("loss", 2, 7)
        trainner.logger.write_image("image", [0], caption="c")
        trainner.logger.write_config({"a": 1})


def test_logger_writes_to_the_run_of_the_event() -> None:
    (bus, other), hooks = (HookBus(), HookBus()), (Scalars(), Scalars())
    for current, hook in zip((bus, other), hooks, strict=True):
        current.register(hook)
        current.register(Logging())
    with bus.run(epochs=1), other.run(epochs=1):
        other.emit("before_epoch")
    assert hooks[0].seen == []
    assert hooks[1].seen == [({"loss": 2.0}, 7), ("image", [0], "c"), {"a": 1}]


def test_logger_writes_to_the_only_active_run_outside_of_events() -> None:
    bus = HookBus([hook := Scalars()])
    with bus.run(epochs=1) as run:
        run.logger.write_scalar("loss", 1.5)
        assert hook.seen == [({"loss": 1.5}, 0)]
        other = HookBus()
        with (
            other.run(epochs=1),
            pytest.raises(
                ServiceError, match=r"^run.logger.write_scalar: expected one active run, got 2. Call run.wri"
            ),
        ):
            run.logger.write_scalar("loss", 1.5)


def test_class_of_an_existing_logger_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(logging.Logger):
        pass

    logger = Own("hookbus")
    monkeypatch.setitem(logging.Logger.manager.loggerDict, "hookbus", logger)
    assert get_run_logger() is logger is HookBus().current.logger
    assert isinstance(logger, Own)
    assert callable(logger.write_scalar)  # type: ignore[attr-defined]


def test_loss_dict_contains_the_latest_values_as_tensors() -> None:
    bus = HookBus([Hook()])
    with bus.run(epochs=1) as run:
        assert run.loss_dict == {}
        for value in (1.0, 3.0):
            bus.emit("before_train_iter", batch_idx=0, batch=[1])
            outputs = {"loss": torch.tensor(value, requires_grad=True), "L1": torch.tensor(value * 2)}
            bus.emit("after_train_iter", batch_idx=0, batch=[1], outputs=outputs)
        assert {name: value.item() for name, value in run.loss_dict.items()} == {"loss": 3.0, "L1": 6.0}
        assert not run.loss_dict["loss"].requires_grad
        assert run.global_step == run.steps_done == 2


def test_events_are_emitted_by_call_hook() -> None:
    bus = HookBus([hook := Scalars()])
    bus.current.call_hook("log_scalars", values={"a": 1}, step=4)
    bus.current.writer.write_scalar("b", 1, 5)
    assert hook.seen == [({"a": 1}, 4), ({"b": 1.0}, 5)]
