"""A guide to hooks: points, hooks in a run file and in code, services, frequency, and custom hooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run, Trainer, build_hook, load_config
from hookbus.errors import ConfigError
from hookbus.hooks import BaseHook, FeatureMapHook, GradientFlowHook, HookRegistry, SystemMonitorHook, TimeTrackingHook
from hookbus.testing import fake_training
from tests.conftest import Project
from tests.toys import pairs, trainer

from .toys import Recorder, restored_registry

POINTS = {
    "before_training": ("before_train", 1),
    "before_epoch": ("before_epoch", 2),
    "before_step": ("before_train_iter", 6),
    "after_step": ("after_train_iter", 6),
    "after_epoch": ("after_epoch", 2),
    "after_training": ("after_train", 1),
    "cleanup": ("cleanup", 1),
}
"""Point with this name, and its number of events in two epochs of three batches."""


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with restored_registry():
        yield


class TestPoints:
    @pytest.mark.parametrize(("name", "count"), [(k, v[1]) for k, v in POINTS.items()], ids=list(POINTS))
    def test_method_is_called_at_each_event(self, name: str, count: int) -> None:
        calls: list[str] = []

        class Own(BaseHook):
            pass

        setattr(Own, name, lambda self: calls.append(name))
        trainer(Own(), epochs=2).train()
        assert len(calls) == count

    @pytest.mark.parametrize(("name", "point"), [(k, v[0]) for k, v in POINTS.items()], ids=list(POINTS))
    def test_name_denotes_the_point(self, name: str, point: str) -> None:
        hook = type("Own", (BaseHook,), {name: lambda self: None})()
        assert hook.get_triggered_stages() == [point]

    def test_points_are_reached_in_the_order_of_the_list(self) -> None:
        calls: list[str] = []

        class Own(BaseHook):
            pass

        for name in POINTS:
            setattr(Own, name, _make_recorder(calls, name))
        trainer(Own(), train_loader=pairs(1), epochs=1).train()
        assert calls == list(POINTS)

    def test_cleanup_is_called_after_a_failure(self) -> None:
        calls = []

        class Resource(BaseHook):
            def after_step(self) -> None:
                raise ZeroDivisionError("no")

            def cleanup(self) -> None:
                calls.append("released")

        with pytest.raises(ZeroDivisionError):
            trainer(Resource(), epochs=1).train()
        assert calls == ["released"]


def _make_recorder(calls: list[str], name: str) -> Any:
    return lambda self: calls.append(name)


@pytest.mark.parametrize(
    ("class_name", "cls"),
    [
        ("FeatureMapHook", FeatureMapHook),
        ("GradientFlowHook", GradientFlowHook),
        ("TimeTrackingHook", TimeTrackingHook),
        ("SystemMonitorHook", SystemMonitorHook),
    ],
)
def test_hook_is_built_from_its_class_name(class_name: str, cls: type[Hook]) -> None:
    assert type(build_hook({"type": class_name})) is cls


RUN_FILE = """
experiment_dir: "experiments/my_experiment"

model:
  type: "parts:net"

dataset:
  type: "parts:points"
  batch_size: 8

loss: cross_entropy
device: cpu

training:
  epochs: 2

hooks:
  - type: "TimeTrackingHook"
    name: "training_timer"
    frequency: 1
    log_to_file: true
    log_path: "time_tracking.log"

  - type: "FeatureMapHook"
    name: "feature_visualizer"
    frequency: 4
    max_features: 16
    sample_batch_idx: 0

  - type: "SystemMonitorHook"
    name: "system_monitor"
    frequency: 4
    interval: 2
    track_cpu: true
    track_memory: true
    track_gpu: true
    track_gpu_memory: true
"""
SETTINGS = {
    "training_timer": {"frequency": 1, "log_to_file": True, "log_path": "time_tracking.log"},
    "feature_visualizer": {"frequency": 4, "max_features": 16, "sample_batch_idx": 0},
    "system_monitor": {
        "frequency": 4,
        "interval": 2,
        "track_cpu": True,
        "track_memory": True,
        "track_gpu": True,
        "track_gpu_memory": True,
    },
}
ROWS = [(name, key, value) for name, settings in SETTINGS.items() for key, value in settings.items()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Run, Path]:
    """Trainer of the run file, its finished run, and the directory in which it was started."""
    directory, path = tmp_path_factory.mktemp("guide"), list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delitem(sys.modules, "parts", raising=False)
        loop = Trainer(load_config(Project(directory).write(RUN_FILE)))
        run = loop.train()
    sys.path[:] = path
    sys.modules.pop("parts", None)
    return loop, run, directory / "experiments" / "my_experiment"


class TestRunFile:
    @pytest.mark.parametrize(("name", "key", "value"), ROWS, ids=[f"{name}-{key}" for name, key, _ in ROWS])
    def test_setting_of_the_file_reaches_the_hook(self, finished: Any, name: str, key: str, value: Any) -> None:
        assert getattr(finished[0].bus.hooks[name].config, key) == value

    @pytest.mark.parametrize(
        ("name", "cls"),
        [
            ("training_timer", TimeTrackingHook),
            ("feature_visualizer", FeatureMapHook),
            ("system_monitor", SystemMonitorHook),
        ],
    )
    def test_type_and_name_of_the_file_determine_the_hook(self, finished: Any, name: str, cls: type[Hook]) -> None:
        assert type(finished[0].bus.hooks[name]) is cls

    def test_trainer_of_a_loaded_configuration_trains_all_epochs(self, finished: Any) -> None:
        _, run, _ = finished
        assert (run.outcome, run.epochs_done) == ("finished", 2)

    def test_experiment_directory_is_the_work_directory(self, finished: Any) -> None:
        _, _, directory = finished
        assert (directory / "checkpoints" / "epoch_2.pth").is_file()

    def test_times_are_appended_to_the_log_file_of_every_epoch(self, finished: Any) -> None:
        _, _, directory = finished
        lines = (directory / "logs" / "time_tracking.log").read_text().splitlines()
        assert ["epoch 1/2" in line for line in lines if "epoch " in line] == [True, False]

    def test_feature_maps_are_saved_every_frequency_iterations(self, finished: Any) -> None:
        # Three layers in eight iterations, of which the fourth and the last are due.
        _, _, directory = finished
        files = (directory / "visualization" / "feature_visualizer").glob("*.png")
        expected = [f"train-{layer}-step-0000000{step}.png" for layer in range(3) for step in (4, 8)]
        assert sorted(file.name for file in files) == expected


class TestRegistrationInCode:
    def test_hook_is_created_from_a_dictionary(self) -> None:
        settings = {"frequency": 1, "log_to_file": True, "log_path": "custom_time_tracking.log"}
        hook = TimeTrackingHook(settings)
        assert (hook.config.frequency, hook.config.log_to_file) == (1, True)
        assert hook.config.log_path == "custom_time_tracking.log"

    def test_registered_hook_writes_its_file(self, tmp_path: Path) -> None:
        loop = trainer(epochs=2, work_dir=tmp_path)
        loop.register_hook(TimeTrackingHook({"log_to_file": True, "log_path": "custom_time_tracking.log"}))
        loop.train()
        lines = (tmp_path / "logs" / "custom_time_tracking.log").read_text().splitlines()
        assert sum(f"epoch {epoch}/2" in line for line in lines for epoch in (1, 2)) == 2

    def test_register_hook_returns_the_registered_hook(self) -> None:
        hook = TimeTrackingHook({"frequency": 1})
        loop = trainer()
        assert loop.register_hook(hook) is hook
        assert loop.bus.hooks["time_tracking"] is hook


class TestHooksOfTheList:
    def test_time_tracking_estimates_the_remaining_time(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hookbus")
        fake_training([TimeTrackingHook()], epochs=2)
        (first, last) = [message for message in caplog.messages if message.startswith("epoch ")]
        assert first.startswith("epoch 1/2: ")
        assert "remaining 0.0 s" in last

    def test_gradient_flow_records_the_gradient_of_each_parameter(self) -> None:
        recorder = Recorder()
        trainer(GradientFlowHook({"frequency": 3}), recorder, model=nn.Linear(4, 2), epochs=1).train()
        assert [step for step, _ in recorder.get_curve("gradients/weight/max")] == [3]
        assert [step for step, _ in recorder.get_curve("gradients/bias/max")] == [3]

    def test_feature_maps_of_a_convolution_are_logged_by_layer(self) -> None:
        recorder = Recorder()
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))
        loader = [(torch.rand(2, 1, 2, 2), torch.tensor([0, 1]))] * 4
        hook = FeatureMapHook({"frequency": 2, "backend": "pillow"})
        trainer(hook, recorder, model=model, train_loader=loader, epochs=1).train()
        assert list(recorder.images) == ["train/feature_map/0"]

    @pytest.mark.parametrize(
        ("flag", "name"), [("track_cpu", "system/cpu_percent"), ("track_memory", "system/memory_percent")]
    )
    def test_monitor_samples_the_resource_if_it_is_tracked(self, flag: str, name: str) -> None:
        flags = {f"track_{kind}": False for kind in ("cpu", "memory", "gpu", "gpu_memory", "disk", "network")}
        recorder = Recorder()
        bus = HookBus([SystemMonitorHook({**flags, flag: True, "frequency": 1, "interval": 0.01}), recorder])
        with bus.run():
            while not recorder.get_curve(name):  # the timeout of pytest is the limit
                bus.emit("before_train_iter")
                bus.emit("after_train_iter")
        others = {"track_cpu", "track_memory"} - {flag}
        unexpected = {"track_cpu": "system/cpu_percent", "track_memory": "system/memory_percent"}[others.pop()]
        assert recorder.get_curve(unexpected) == []


def define_custom_hook() -> type[Hook]:
    """Define and register a custom hook with two services."""

    @HookRegistry.register("MyCustomHook")
    class MyCustomHook(BaseHook):
        def __init__(self, config: dict[str, Any] | None = None) -> None:
            super().__init__(config)

        def before_training(self, model: nn.Module) -> None:
            logger = self.get_service("logger")
            if logger:
                logger.info("training starts!")

        def after_epoch(self, epoch: int, model: nn.Module, metrics: dict[str, float]) -> None:
            logger = self.get_service("logger")
            visualizer = self.get_service("visualizer")
            if logger:
                logger.info(f"epoch {epoch + 1} is complete: {metrics}")
            if visualizer:
                visualizer.add_scalar("custom/metric", 0.5, epoch)

    return MyCustomHook


class TestCustomHook:
    def test_registered_name_is_a_type(self) -> None:
        cls = define_custom_hook()
        assert type(build_hook({"type": "MyCustomHook"})) is cls

    def test_registered_name_is_a_type_in_a_run_file(self, project: Project) -> None:
        cls = define_custom_hook()
        text = RUN_FILE[: RUN_FILE.index("hooks:")] + "hooks:\n  - {type: MyCustomHook}\n"
        hooks = Trainer(load_config(project.write(text))).bus.hooks.values()
        assert [type(hook) for hook in hooks].count(cls) == 1

    @pytest.mark.parametrize(
        "start", ["training starts!", "epoch 1 is complete: ", "epoch 2 is complete: "], ids=["start", "first", "last"]
    )
    def test_message_is_logged(self, caplog: pytest.LogCaptureFixture, start: str) -> None:
        caplog.set_level("INFO", "hookbus")
        trainer(define_custom_hook()(), epochs=2).train()
        assert sum(message.startswith(start) for message in caplog.messages) == 1

    def test_scalar_of_the_visualizer_has_the_epoch_as_step(self) -> None:
        recorder = Recorder()
        trainer(define_custom_hook()(), recorder, epochs=2).train()
        assert recorder.get_curve("custom/metric") == [(0, 0.5), (1, 0.5)]

    def test_common_keys_are_settings_of_the_hook(self) -> None:
        hook = define_custom_hook()({"name": "mine", "frequency": 2})
        assert (hook.name, hook.config.frequency) == ("mine", 2)

    def test_unknown_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="frequenzy: unknown key.*frequency"):
            define_custom_hook()({"frequenzy": 2})


class Metrics(BaseHook):
    """Pass the metrics of each epoch to a function."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.call = call

    def after_epoch(self, metrics: dict[str, float]) -> None:
        self.call(metrics)


class TestMetrics:
    @pytest.fixture
    def metrics(self) -> Any:
        """Metrics of an epoch with the losses 1, 2 and 3."""
        received: list[Any] = []
        fake_training([Metrics(received.append)], epochs=1, losses=float, scores=lambda epoch: {"accuracy": 0.5})
        return received[0]

    def test_metrics_are_a_dictionary_of_numbers(self, metrics: Any) -> None:
        assert isinstance(metrics, dict)
        assert dict(metrics.items()) == {"train/loss": 2.0, "val/accuracy": 0.5}

    def test_metrics_are_serialized_as_json(self, metrics: Any) -> None:
        assert json.loads(json.dumps(metrics)) == {"train/loss": 2.0, "val/accuracy": 0.5}

    def test_metrics_are_read_only(self, metrics: Any) -> None:
        with pytest.raises(TypeError):
            metrics["train/loss"] = 0.0


class ServiceRecorder(BaseHook):
    """Record the services of a run by name."""

    def __init__(self) -> None:
        super().__init__()
        self.services: dict[str, Any] = {}
        self.early = self.get_service("logger")

    def after_training(self) -> None:
        self.services = {name: self.get_service(name) for name in SERVICES}


SERVICES = {
    "trainer": lambda loop: loop,
    "config": lambda loop: {"width": 8},
    "model": lambda loop: loop.model,
    "train_loader": lambda loop: loop.train_loader,
    "val_loader": lambda loop: loop.val_loader,
    "optimizer": lambda loop: loop.optimizer,
    "scheduler": lambda loop: loop.scheduler.scheduler,
    "device": lambda loop: torch.device("cpu"),
    "experiment_dir": lambda loop: loop.work_dir,
    "checkpoints_dir": lambda loop: loop.work_dir / "checkpoints",
    "logs_dir": lambda loop: loop.work_dir / "logs",
    "visualization_dir": lambda loop: loop.work_dir / "visualization",
}


def train_with_services(work_dir: Path) -> tuple[Any, ServiceRecorder]:
    hook, model = ServiceRecorder(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}
    options |= {"val_loader": pairs(1), "config": {"width": 8}, "work_dir": work_dir, "epochs": 1}
    loop = trainer(hook, model=model, **options)
    loop.train()
    return loop, hook


class TestServices:
    @pytest.mark.parametrize("name", [name for name in SERVICES if name != "scheduler"])
    def test_service_is_the_part_of_the_training(self, tmp_path: Path, name: str) -> None:
        loop, hook = train_with_services(tmp_path)
        assert hook.services[name] == SERVICES[name](loop)

    def test_scheduler_is_a_service(self, tmp_path: Path) -> None:
        _, hook = train_with_services(tmp_path)
        assert type(hook.services["scheduler"]) is torch.optim.lr_scheduler.StepLR

    def test_logger_is_a_service_that_logs(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "hookbus")

        class Log(BaseHook):
            def after_epoch(self) -> None:
                logger = self.get_service("logger")
                if logger:
                    logger.info("epoch is complete")

        trainer(Log(), epochs=1).train()
        assert caplog.messages.count("epoch is complete") == 1

    @pytest.mark.parametrize(
        ("method", "arguments", "kind"),
        [("add_scalar", ("a", 0.5, 1), "scalars"), ("add_image", ("b", torch.zeros(3, 8, 8), 1), "images")],
    )
    def test_visualizer_is_a_service_that_records(self, method: str, arguments: Any, kind: str) -> None:
        class Draw(BaseHook):
            def after_epoch(self) -> None:
                getattr(self.get_service("visualizer"), method)(*arguments)

        recorder = Recorder()
        trainer(Draw(), recorder, epochs=1).train()
        assert len(getattr(recorder, kind)) == 1

    def test_directories_are_created_on_first_use(self, tmp_path: Path) -> None:
        train_with_services(tmp_path)
        assert all((tmp_path / name).is_dir() for name in ("checkpoints", "logs", "visualization"))

    def test_service_is_none_in_the_constructor(self) -> None:
        assert ServiceRecorder().early is None

    def test_unknown_service_is_none(self) -> None:
        answers = []

        class Ask(BaseHook):
            def before_training(self) -> None:
                answers.append(self.get_service("unknown"))

        trainer(Ask(), epochs=1).train()
        assert answers == [None]


class Tracker:
    """Client of an experiment tracker, as a service of the user."""

    def __init__(self) -> None:
        self.records: list[tuple[str, float, int]] = []
        self.runs = 0

    @contextmanager
    def start_run(self) -> Iterator[None]:
        self.runs += 1
        yield

    def log_metric(self, name: str, value: float, step: int) -> None:
        self.records.append((name, value, step))


class TrackerHook(BaseHook):
    """Log the metrics of each epoch to the service `mlflow`."""

    def after_epoch(self, epoch, model, metrics):  # type: ignore[no-untyped-def]
        mlflow = self.get_service("mlflow")
        if mlflow:
            with mlflow.start_run():
                for name, value in metrics.items():
                    mlflow.log_metric(name, value, step=epoch)


class TestOwnServices:
    def test_registered_service_reaches_the_hook(self) -> None:
        loop, tracker = trainer(TrackerHook(), epochs=2, train_loader=pairs(1)), Tracker()
        loop.register_service("mlflow", tracker)
        loop.train()
        assert [(name, step) for name, _, step in tracker.records] == [("train/loss", 0), ("train/loss", 1)]
        assert tracker.runs == 2

    def test_hook_without_its_service_does_nothing(self) -> None:
        assert trainer(TrackerHook(), epochs=1).train().outcome == "finished"


def collect_iterations(hook: Any, iterations: int) -> list[int]:
    """Run a loop without a model, and return the iterations from 1 that the hook recorded."""
    bus = HookBus([hook])
    with bus.run(iterations=iterations) as run:
        for _ in range(iterations):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
        assert run.iters_done == iterations
    return hook.iterations


class Counting(BaseHook):
    """Record the numbers of the iterations at whose end the hook is called."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config)
        self.iterations: list[int] = []

    def after_step(self, run: Run) -> None:
        self.iterations.append(run.iters_done)


class TestFrequency:
    @pytest.mark.parametrize(
        ("config", "expected"),
        [({}, list(range(1, 13))), ({"frequency": 1}, list(range(1, 13))), ({"frequency": 5}, [5, 10])],
        ids=["unset", "1", "5"],
    )
    def test_frequency_determines_the_iterations(self, config: dict[str, Any], expected: list[int]) -> None:
        assert collect_iterations(Counting(config), 12) == expected

    def test_frequency_of_an_epoch_hook_counts_epochs(self) -> None:
        recorder = Recorder()
        fake_training([TimeTrackingHook({"frequency": 2}), recorder], epochs=4)
        assert [step for step, _ in recorder.get_curve("time/epoch")] == [6, 12]

    def test_overridden_condition_receives_the_index_of_the_iteration(self) -> None:
        class Sparse(Counting):
            def should_trigger(self, step: int) -> bool:
                if step < 100:
                    return True
                return step % 10 == 0

        # Indices 0 to 99, 100, 110 and 120 are the numbers 1 to 100, 101, 111 and 121.
        assert collect_iterations(Sparse(), 125) == [*range(1, 101), 101, 111, 121]

    def test_overridden_condition_applies_to_both_ends_of_an_iteration(self) -> None:
        calls = []

        class Second(BaseHook):
            def should_trigger(self, step: int) -> bool:
                return step == 1

            def before_step(self, run: Run) -> None:
                calls.append(("before", run.iter))

            def after_step(self, run: Run) -> None:
                calls.append(("after", run.iter))

        fake_training([Second()], epochs=1)
        assert calls == [("before", 1), ("after", 1)]

    def test_overridden_condition_receives_the_index_of_the_epoch_at_epochs(self) -> None:
        epochs = []

        class Even(BaseHook):
            def should_trigger(self, step: int) -> bool:
                return step % 2 == 0

            def after_epoch(self, epoch: int) -> None:
                epochs.append(epoch)

        fake_training([Even()], epochs=4)
        assert epochs == [0, 2]

    def test_condition_called_by_hand_answers_for_the_frequency(self) -> None:
        assert [Counting({"frequency": 5}).should_trigger(step) for step in range(6)] == [False] * 4 + [True, False]
