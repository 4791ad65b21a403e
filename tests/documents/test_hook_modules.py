"""Hooks for checkpoints, logging, evaluation, early stopping, averages, profiling and images: settings and effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookbus
import hookbus.hooks
from hookbus import BaseHook, Hook, HookBus, Priority, Run, build_hook, build_hooks, get_default_hooks
from hookbus.errors import ConfigError
from hookbus.metrics.direction import infer_direction
from hookbus.testing import RecordingBus, fake_training, fingerprint
from hookbus.trainer.trainer import Trainer
from tests.conftest import Project
from tests.toys import net, pairs, trainer

from .toys import LossModel, Recorder, restored_registry

CLASSES = {
    "checkpoint": "CheckpointHook",
    "logger": "LoggerHook",
    "tensorboard": "TensorBoardHook",
    "wandb": "WandbHook",
    "mlflow": "MLflowHook",
    "eval": "EvalHook",
    "dist_eval": "DistEvalHook",
    "early_stopping": "EarlyStoppingHook",
    "ema": "EMAHook",
    "profiler": "ProfilerHook",
    "memory_profiler": "MemoryProfilerHook",
    "iter_timer": "IterTimerHook",
    "visualization": "VisualizationHook",
    "det_visualization": "DetVisualizationHook",
    "seg_visualization": "SegVisualizationHook",
}


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with restored_registry():
        yield


@pytest.mark.parametrize(("entry_point", "class_name"), CLASSES.items(), ids=list(CLASSES))
def test_class_is_exported_and_named_by_its_entry_point(entry_point: str, class_name: str) -> None:
    cls = getattr(hookbus.hooks, class_name)
    assert issubclass(cls, BaseHook)
    assert type(build_hook({"type": entry_point})) is type(build_hook({"type": class_name})) is cls


@pytest.mark.parametrize("name", ["build_hook", "build_hooks", "BaseHook", "HOOKS"])
def test_name_is_exported_beside_the_classes(name: str) -> None:
    assert getattr(hookbus.hooks, name) is getattr(hookbus, name)


DEFAULTS: dict[str, dict[str, Any]] = {
    "CheckpointHook": {
        "interval": 1,
        "by_epoch": True,
        "save_optimizer": True,
        "save_scheduler": True,
        "max_keep_ckpts": 5,
        "save_last": True,
        "save_best": True,
        "best_metric": "accuracy",
        "out_dir": None,
    },
    "LoggerHook": {"interval": 50, "by_epoch": True, "log_metric_by_epoch": True, "ignore_last": True},
    "TensorBoardHook": {
        "log_dir": None,
        "interval": 50,
        "log_graph": False,
        "log_images": False,
        "image_interval": 1000,
    },
    "WandbHook": {
        "project": None,
        "name": None,
        "config": None,
        "log_model": False,
        "interval": 50,
        "log_code": False,
    },
    "EvalHook": {
        "interval": 1,
        "by_epoch": True,
        "start": 0,
        "save_best": True,
        "metric": "accuracy",
        "efficient_test": False,
        "test_fn": None,
    },
    "EarlyStoppingHook": {
        "monitor": "val_loss",
        "patience": 10,
        "min_delta": 0.0,
        "mode": "auto",
        "baseline": None,
        "restore_best_weights": True,
        "check_finite": True,
        "stopping_threshold": None,
        "divergence_threshold": None,
    },
    "EMAHook": {"momentum": 0.9999, "interval": 1, "warm_up": 100, "resume_from": None, "update_buffers": False},
    "ProfilerHook": {
        "by_epoch": False,
        "profile_iters": 100,
        "on_trace_ready": None,
        "record_shapes": True,
        "profile_memory": True,
        "with_stack": False,
        "with_flops": True,
        "export_chrome_trace": True,
        "export_tensorboard": True,
    },
    "MemoryProfilerHook": {"interval": 50, "log_gpu": True, "log_cpu": True, "warn_threshold": None},
    "IterTimerHook": {"interval": 50, "log_eta": True},
    "VisualizationHook": {
        "interval": 500,
        "draw_gt": True,
        "draw_pred": True,
        "show": False,
        "save": True,
        "out_dir": None,
        "max_samples": 16,
        "score_thr": 0.3,
        "backend": "matplotlib",
    },
}


@pytest.mark.parametrize(
    ("hook", "parameter", "default"),
    [(hook, parameter, default) for hook, values in DEFAULTS.items() for parameter, default in values.items()],
    ids=[f"{hook}-{parameter}" for hook, values in DEFAULTS.items() for parameter in values],
)
def test_default_of_a_setting(hook: str, parameter: str, default: Any) -> None:
    value = getattr(build_hook({"type": hook}).config, parameter)
    assert (type(value), value) == (type(default), default)


@pytest.mark.parametrize("hook", ["CheckpointHook", "EvalHook"])
def test_default_metric_is_better_if_greater(hook: str) -> None:
    # The direction is inferred from the name, so that `best_metric: loss` alone is not a trap.
    assert build_hook({"type": hook}).config.rule is None
    assert infer_direction("accuracy") == "greater"


@pytest.mark.parametrize(
    ("settings", "template"), [({}, "epoch_{}.pth"), ({"by_epoch": False}, "iter_{}.pth")], ids=["epochs", "iterations"]
)
def test_default_template_of_checkpoint_files(settings: Any, template: str) -> None:
    assert build_hook({"type": "CheckpointHook", **settings}).config.template == template


@pytest.mark.parametrize(
    ("hook", "key"),
    [
        *(("DetVisualizationHook", key) for key in ("class_names", "palette", "bbox_color", "text_color", "thickness")),
        *(("SegVisualizationHook", key) for key in ("class_names", "palette", "opacity", "show_edge")),
    ],
)
def test_extension_of_the_image_hook_has_the_setting(hook: str, key: str) -> None:
    values = {
        "class_names": ("cat", "dog"),
        "palette": ((255, 0, 0), (0, 0, 255)),
        "bbox_color": (255, 0, 0),
        "text_color": (0, 0, 255),
        "thickness": 3,
        "opacity": 0.25,
        "show_edge": True,
    }
    assert getattr(build_hook({"type": hook, key: values[key]}).config, key) == values[key]


LEVELS = {
    "HIGHEST": 0,
    "VERY_HIGH": 10,
    "HIGH": 30,
    "ABOVE_NORMAL": 40,
    "NORMAL": 50,
    "BELOW_NORMAL": 60,
    "LOW": 70,
    "VERY_LOW": 90,
    "LOWEST": 100,
}


class TestPriorities:
    @pytest.mark.parametrize(("name", "value"), LEVELS.items(), ids=list(LEVELS))
    def test_level_has_its_number_and_is_a_setting(self, name: str, value: int) -> None:
        assert Priority[name] == value
        assert build_hook({"type": "ema", "priority": name}).config.priority == value

    @pytest.mark.parametrize(
        ("hook", "level"),
        [
            ("EMAHook", "ABOVE_NORMAL"),
            ("LoggerHook", "NORMAL"),
            ("CheckpointHook", "BELOW_NORMAL"),
            ("EvalHook", "LOW"),
            ("EarlyStoppingHook", "VERY_LOW"),
        ],
    )
    def test_default_priority_of_a_hook(self, hook: str, level: str) -> None:
        assert build_hook({"type": hook}).priority == LEVELS[level]

    def test_hook_of_the_user_is_normal_by_default(self) -> None:
        class Own(Hook):
            pass

        assert Own().priority == 50

    @pytest.mark.parametrize(
        ("point", "order"),
        [
            ("before_train", ["low", "middle", "high"]),
            ("before_train_iter", ["low", "middle", "high"]),
            ("before_run", ["low", "middle", "high"]),
            ("after_train_iter", ["high", "middle", "low"]),
            ("after_train", ["high", "middle", "low"]),
            ("after_run", ["high", "middle", "low"]),
        ],
    )
    def test_opening_points_run_upward_and_closing_points_downward(self, point: str, order: list[str]) -> None:
        calls: list[str] = []

        class Named(Hook):
            pass

        setattr(Named, point, lambda self: calls.append(self.name))
        fake_training([Named(name=n, priority=p) for n, p in (("middle", 50), ("high", 90), ("low", 10))], epochs=1)
        assert calls[:3] == order


class TestBuilder:
    def test_hook_is_built_from_a_configuration_that_is_not_changed(self) -> None:
        config = {"type": "EMAHook", "momentum": 0.99}
        assert build_hook(config).config.momentum == 0.99
        assert config == {"type": "EMAHook", "momentum": 0.99}

    def test_list_is_sorted_by_priority(self) -> None:
        types = ["early_stopping", "checkpoint", "eval", "ema", "logger"]
        hooks = build_hooks([{"type": name} for name in types])
        assert [hook.name for hook in hooks] == ["ema", "logger", "checkpoint", "eval", "early_stopping"]

    def test_configured_priority_determines_the_position_in_the_list(self) -> None:
        hooks = build_hooks([{"type": "ema", "priority": 95}, {"type": "early_stopping"}])
        assert [hook.name for hook in hooks] == ["early_stopping", "ema"]

    def test_default_set_is_that_of_the_trainer(self) -> None:
        names = ["logger", "progress", "iter_timer", "checkpoint", "preemption"]
        assert [hook.name for hook in get_default_hooks()] == names

    def test_class_of_the_user_is_built_from_the_registry(self) -> None:
        @hookbus.HOOKS.register("DocumentedHook")
        class Own(Hook):
            pass

        assert type(build_hook({"type": "DocumentedHook"})) is Own

    def test_unknown_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="momentun: unknown key.*momentum"):
            build_hook({"type": "EMAHook", "momentun": 0.9})


BASE_METHODS = {
    "before_run": 1,
    "after_run": 1,
    "before_epoch": 2,
    "after_epoch": 2,
    "before_train_epoch": 2,
    "after_train_epoch": 2,
    "before_val_epoch": 2,
    "after_val_epoch": 2,
    "before_train_iter": 6,
    "after_train_iter": 6,
    "before_val_iter": 4,
    "after_val_iter": 4,
    "before_save_checkpoint": 2,
    "after_load_checkpoint": 1,
}
"""Calls in two epochs of three batches, with two validation batches, after a resume."""


class TestBaseClass:
    @pytest.mark.parametrize(("method", "count"), BASE_METHODS.items(), ids=list(BASE_METHODS))
    def test_method_is_called_with_the_runner(self, tmp_path: Path, method: str, count: int) -> None:
        received: list[Any] = []

        class Own(BaseHook):
            pass

        setattr(Own, method, lambda self, runner: received.append(runner))
        saver = build_hook({"type": "checkpoint", "save_last": False, "save_best": False})
        start = trainer(saver, epochs=1, work_dir=tmp_path / "a")
        start.fit()
        path = tmp_path / "a" / "checkpoints" / "epoch_1.pth"
        loop = trainer(Own(), saver, epochs=3, val_loader=pairs(2), work_dir=tmp_path / "b", resume=path)
        run = loop.fit()
        assert received == [run] * count

    @pytest.mark.parametrize("method", list(BASE_METHODS))
    def test_base_method_is_empty_and_may_be_called_by_a_subclass(self, method: str) -> None:
        class Own(BaseHook):
            pass

        results = []
        setattr(Own, method, lambda self, runner: results.append(getattr(super(Own, self), method)(runner)))
        hook = Own()
        assert hook.get_triggered_stages() == [method]
        getattr(hook, method)(None)
        assert results == [None]

    def test_base_methods_are_no_listeners(self) -> None:
        bus = RecordingBus([BaseHook()])
        fake_training(bus=bus, epochs=1)
        assert bus.calls_made == []

    def test_runner_is_the_current_run(self) -> None:
        seen = []

        class Own(BaseHook):
            def before_train(self, runner: Run) -> None:
                seen.append(self.runner is runner is self.run)

        fake_training([Own()], epochs=1)
        assert seen == [True]

    @pytest.mark.parametrize(
        ("helper", "point", "expected"),
        [
            (lambda hook, run: hook.every_n_epochs(run, 2), "after_train_epoch", [False, True, False, True]),
            (lambda hook, run: hook.every_n_iters(run, 3), "after_train_iter", [False, False, True] * 2 + [False] * 2),
            (lambda hook, run: hook.is_last_epoch(run), "after_train_epoch", [False] * 3 + [True]),
            (lambda hook, run: hook.is_last_iter(run), "after_train_iter", [False] * 7 + [True]),
        ],
        ids=["every_n_epochs", "every_n_iters", "is_last_epoch", "is_last_iter"],
    )
    def test_helper_answers_for_the_current_epoch_or_iteration(
        self, helper: Callable[[Any, Run], bool], point: str, expected: list[bool]
    ) -> None:
        answers: list[bool] = []

        class Own(BaseHook):
            pass

        setattr(Own, point, lambda self, runner: answers.append(helper(self, runner)))
        trainer(Own(), train_loader=pairs(2), epochs=4).fit()
        assert answers == expected

    def test_triggered_stages_are_the_overridden_points_in_order(self) -> None:
        class Own(BaseHook):
            def after_run(self, runner: Run) -> None: ...

            def before_train_iter(self, runner: Run) -> None: ...

            def before_run(self, runner: Run) -> None: ...

        assert Own().get_triggered_stages() == ["before_run", "before_train_iter", "after_run"]


def list_checkpoints(work_dir: Path) -> list[str]:
    return sorted(path.name for path in (work_dir / "checkpoints").glob("*.pth"))


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


PLAIN = {"type": "CheckpointHook", "save_last": False, "save_best": False}


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("settings", "files"),
        [
            ({}, ["epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "epoch_4.pth"]),
            ({"interval": 2}, ["epoch_2.pth", "epoch_4.pth"]),
            ({"by_epoch": False, "interval": 3}, ["iter_3.pth", "iter_6.pth"]),
            ({"max_keep_ckpts": 2}, ["epoch_3.pth", "epoch_4.pth"]),
            ({"interval": 4, "filename_tmpl": "model_{}.pth"}, ["model_4.pth"]),
            ({"interval": 4, "save_last": True}, ["epoch_4.pth", "last.pth"]),
            ({"max_keep_ckpts": 1, "save_last": True}, ["epoch_4.pth", "last.pth"]),
            ({"max_keep_ckpts": 1, "save_best": True}, ["best_accuracy.pth", "epoch_4.pth"]),
        ],
        ids=["default", "interval", "iterations", "limit", "template", "last", "last beside", "best beside"],
    )
    def test_setting_determines_the_files(self, tmp_path: Path, settings: Any, files: list[str]) -> None:
        scores = (lambda epoch: {"accuracy": 0.5}) if "save_best" in settings else None
        hook = build_hook({**PLAIN, **settings})
        fake_training([hook], epochs=4, batches=2, work_dir=tmp_path, scores=scores)
        assert list_checkpoints(tmp_path) == files

    def test_six_epochs_leave_the_newest_five_by_default(self, tmp_path: Path) -> None:
        fake_training([build_hook(PLAIN)], epochs=6, batches=1, work_dir=tmp_path)
        assert list_checkpoints(tmp_path) == [f"epoch_{epoch}.pth" for epoch in (2, 3, 4, 5, 6)]

    @pytest.mark.parametrize(
        ("settings", "metric", "epoch"),
        [
            ({"best_metric": "accuracy"}, "accuracy", 2),
            ({"best_metric": "accuracy", "rule": "greater"}, "accuracy", 2),
            ({"best_metric": "accuracy", "rule": "less"}, "accuracy", 3),
            ({"best_metric": "loss"}, "loss", 3),
        ],
        ids=["accuracy", "greater", "less", "loss"],
    )
    def test_best_file_is_that_of_the_best_epoch(self, tmp_path: Path, settings: Any, metric: str, epoch: int) -> None:
        values = {1: 0.5, 2: 0.9, 3: 0.1}
        hook = build_hook({"type": "CheckpointHook", **settings})
        scores = lambda epoch: {"accuracy": values[epoch], "loss": values[epoch]}  # noqa: E731
        fake_training([hook], epochs=3, work_dir=tmp_path, scores=scores)
        assert load(tmp_path / "checkpoints" / f"best_{metric}.pth")["meta"]["epoch"] == epoch

    def test_absolute_out_dir_contains_the_files(self, tmp_path: Path) -> None:
        hook = build_hook({**PLAIN, "out_dir": str(tmp_path / "own")})
        fake_training([hook], epochs=1, work_dir=tmp_path / "run")
        assert [path.name for path in (tmp_path / "own").glob("*.pth")] == ["epoch_1.pth"]

    def test_relative_out_dir_is_below_the_work_directory(self, tmp_path: Path) -> None:
        fake_training([build_hook({**PLAIN, "out_dir": "own"})], epochs=1, work_dir=tmp_path)
        assert (tmp_path / "own" / "epoch_1.pth").is_file()

    @pytest.mark.parametrize(("key", "setting"), [("optimizer", "save_optimizer"), ("scheduler", "save_scheduler")])
    @pytest.mark.parametrize("saved", [True, False])
    def test_state_is_saved_if_configured(self, tmp_path: Path, key: str, setting: str, saved: bool) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        hook = build_hook({**PLAIN, setting: saved})
        options = {"optimizer": optimizer, "scheduler": scheduler, "work_dir": tmp_path, "epochs": 1}
        trainer(hook, model=model, **options).fit()
        assert bool(load(tmp_path / "checkpoints" / "epoch_1.pth").get(key)) is saved

    @pytest.fixture
    def content(self, tmp_path: Path) -> dict[str, Any]:
        """Content of the checkpoint of the second epoch of a training with an average."""
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        hooks = build_hooks([PLAIN, {"type": "EMAHook", "momentum": 0.5, "warm_up": 0}])
        options = {"optimizer": optimizer, "scheduler": scheduler, "work_dir": tmp_path, "epochs": 2}
        trainer(*hooks, model=model, **options).fit()
        self.model = model
        return load(tmp_path / "checkpoints" / "epoch_2.pth")

    @pytest.mark.parametrize("key", ["meta", "state_dict", "optimizer", "scheduler", "ema_state_dict"])
    def test_checkpoint_contains_the_key(self, content: dict[str, Any], key: str) -> None:
        assert content[key]

    @pytest.mark.parametrize(("key", "value"), [("epoch", 2), ("iter", 6)])
    def test_meta_contains_the_position(self, content: dict[str, Any], key: str, value: int) -> None:
        assert content["meta"][key] == value

    def test_meta_contains_the_time(self, content: dict[str, Any]) -> None:
        assert content["meta"]["time"]

    def test_state_dict_contains_the_weights_of_the_model(self, content: dict[str, Any]) -> None:
        assert fingerprint(content["state_dict"]) == fingerprint(self.model.state_dict())

    def test_average_has_the_names_of_the_weights_and_other_values(self, content: dict[str, Any]) -> None:
        assert content["ema_state_dict"].keys() == content["state_dict"].keys()
        assert fingerprint(content["ema_state_dict"]) != fingerprint(content["state_dict"])

    def test_training_resumed_from_a_checkpoint_has_the_same_weights(self, tmp_path: Path) -> None:
        def build(epochs: int, name: str, **options: Any) -> Trainer:
            settings = {"epochs": epochs, "seed": 0, "work_dir": tmp_path / name, **options}
            return trainer(build_hook(PLAIN), model=net(), **settings)

        torch.manual_seed(0)
        whole = build(2, "whole")
        whole.fit()
        torch.manual_seed(0)
        build(1, "half").fit()
        rest = build(2, "rest", resume=tmp_path / "half" / "checkpoints" / "epoch_1.pth")
        rest.fit()
        assert fingerprint(rest.model.state_dict()) == fingerprint(whole.model.state_dict())

    @pytest.mark.parametrize("point", ["after_train_epoch", "after_train_iter", "after_val"])
    def test_hook_listens_at_the_point(self, point: str) -> None:
        # Best values are those of all loaders, so the hook reads them at the end of the validation.
        assert point in build_hook(PLAIN).get_triggered_stages()


def get_lines(capsys: pytest.CaptureFixture[str], word: str) -> list[str]:
    """Return the printed lines that contain a word."""
    output = capsys.readouterr()
    return [line for line in (output.out + output.err).splitlines() if word in line.split()]


class TestLogger:
    @pytest.mark.parametrize(
        ("settings", "count"),
        [
            ({"interval": 2}, 3),  # batch 2 of each epoch of three batches, and the end of the run
            ({"interval": 2, "ignore_last": False}, 4),  # and the rest of each epoch
            ({"interval": 2, "by_epoch": False}, 3),  # iterations 2, 4 and 6
            ({"interval": 1}, 6),
            ({}, 2),  # the only record of an epoch is never dropped
        ],
        ids=["per epoch", "with the rest", "whole run", "every iteration", "default"],
    )
    def test_setting_determines_the_number_of_lines(
        self, capsys: pytest.CaptureFixture[str], settings: Any, count: int
    ) -> None:
        fake_training([build_hook({"type": "LoggerHook", **settings})], epochs=2, batches=3)
        assert len([line for line in get_lines(capsys, "lr") if "  train  " in line]) == count

    @pytest.mark.parametrize(("by_epoch", "text"), [(True, "epoch 1/1"), (False, "iteration 3")])
    def test_results_are_labeled_by_epoch_or_iteration(
        self, capsys: pytest.CaptureFixture[str], by_epoch: bool, text: str
    ) -> None:
        hook = build_hook({"type": "LoggerHook", "log_metric_by_epoch": by_epoch})
        fake_training([hook], epochs=1, scores=lambda epoch: {"accuracy": 0.5})
        assert text in get_lines(capsys, "val/accuracy")[0]

    @pytest.mark.parametrize("text", ["lr 0.1", "loss 2"])
    def test_line_contains_the_value(self, capsys: pytest.CaptureFixture[str], text: str) -> None:
        fake_training([build_hook({"type": "LoggerHook", "interval": 3})], epochs=1, losses=float)
        assert text in " ".join(get_lines(capsys, "train")[0].split())

    @pytest.mark.parametrize(
        ("hook", "results"),
        # Trackers receive results, as all logged values, at the point of scalars.
        [
            ("LoggerHook", "after_val_epoch"),
            ("TensorBoardHook", "log_scalars"),
            ("WandbHook", "log_scalars"),
            ("MLflowHook", "log_scalars"),
        ],
    )
    @pytest.mark.parametrize("point", ["before_run", "after_train_iter", "results", "after_run"])
    def test_logging_hook_listens_at_the_point(self, hook: str, results: str, point: str) -> None:
        assert (results if point == "results" else point) in build_hook({"type": hook}).get_triggered_stages()


def read_events(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0, "histograms": 0}).Reload()


class TestTensorBoard:
    def test_means_are_written_every_interval_iterations(self, tmp_path: Path) -> None:
        hook = build_hook({"type": "TensorBoardHook", "interval": 2, "log_dir": str(tmp_path / "tb")})
        fake_training([hook], epochs=1, batches=4, losses=float, work_dir=tmp_path / "run")
        scalars = read_events(tmp_path / "tb").Scalars("train/loss")
        assert [(scalar.step, scalar.value) for scalar in scalars] == [(2, 1.5), (4, 3.5)]

    @pytest.mark.parametrize("name", ["train/loss", "val/accuracy", "lr"])
    def test_scalar_is_recorded(self, tmp_path: Path, name: str) -> None:
        hook = build_hook({"type": "TensorBoardHook", "interval": 3})
        fake_training([hook], epochs=1, scores=lambda epoch: {"accuracy": 0.5}, work_dir=tmp_path)
        assert len(read_events(tmp_path / "logs" / "tensorboard").Scalars(name)) == 1

    @pytest.mark.parametrize(
        ("settings", "kind", "count"),
        [
            ({"log_weights": True, "histogram_interval": 3}, "histograms", 4),
            ({"log_gradients": True, "histogram_interval": 3}, "histograms", 4),
            ({"log_graph": True}, "graph", True),
            ({}, "graph", False),
            ({}, "histograms", 0),
        ],
        ids=["weights", "gradients", "graph", "no graph", "no histograms"],
    )
    def test_setting_determines_what_is_recorded(self, tmp_path: Path, settings: Any, kind: str, count: Any) -> None:
        fake_training([build_hook({"type": "TensorBoardHook", **settings})], epochs=1, work_dir=tmp_path)
        recorded = read_events(tmp_path / "logs" / "tensorboard").Tags()[kind]
        assert (recorded if kind == "graph" else len(recorded)) == count

    @pytest.mark.parametrize(("enabled", "steps"), [(True, [1, 3]), (False, [])])
    def test_images_of_the_batch_are_recorded_every_image_interval(
        self, tmp_path: Path, enabled: bool, steps: list[int]
    ) -> None:
        hook = build_hook({"type": "TensorBoardHook", "log_images": enabled, "image_interval": 2})
        loader = [torch.rand(1, 3, 8, 8)] * 4
        trainer(hook, model=LossModel(), loss_fn=None, train_loader=loader, epochs=1, work_dir=tmp_path).fit()
        events = read_events(tmp_path / "logs" / "tensorboard")
        images = [event for tag in events.Tags()["images"] for event in events.Images(tag)]
        # Recorded at the start of iterations 2 and 4, when 1 and 3 steps are completed.
        assert [event.step for event in images] == steps

    def test_configuration_is_recorded_as_text(self, tmp_path: Path) -> None:
        fake_training([build_hook("tensorboard")], epochs=1, work_dir=tmp_path, config={"width": 8})
        assert "config/text_summary" in read_events(tmp_path / "logs" / "tensorboard").Tags()["tensors"]


def validated_at(hook: Any, *, epochs: int = 4, unit: str = "epochs_done", **options: Any) -> list[int]:
    """Return the epochs or iterations after which a training of two iterations per epoch validates."""
    positions = []

    class Look(Hook):
        def after_val(self, run: Run) -> None:
            positions.append(getattr(run, unit))

    loaders = {"train_loader": pairs(2), "val_loader": pairs(1)}
    trainer(hook, Look(), epochs=epochs, metrics=["accuracy"], **loaders, **options).fit()
    return positions


class TestEvaluation:
    @pytest.mark.parametrize("cls", ["EvalHook", "DistEvalHook"])
    @pytest.mark.parametrize(
        ("settings", "unit", "expected"),
        [
            ({}, "epochs_done", [1, 2, 3, 4]),
            ({"interval": 2}, "epochs_done", [2, 4]),
            ({"start": 3}, "epochs_done", [3, 4]),
            ({"interval": 4, "by_epoch": False}, "iters_done", [4, 8]),
        ],
        ids=["every epoch", "interval", "start", "iterations"],
    )
    def test_setting_determines_the_validations(self, cls: str, settings: Any, unit: str, expected: list[int]) -> None:
        assert validated_at(build_hook({"type": cls, **settings}), unit=unit) == expected

    def test_metric_is_computed_over_all_samples_and_kept_as_result_of_the_run(self) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scores = nn.Parameter(torch.tensor([1.0, 0.0]))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.scores.expand(len(x), 2)

        batches = [(torch.zeros(2, 4), torch.tensor([0, 0])), (torch.zeros(2, 4), torch.tensor([0, 1]))]
        loop = trainer(build_hook("eval"), model=Constant(), lr=0.0, epochs=1, val_loader=batches, metrics=["accuracy"])
        assert loop.fit().metrics.results["val/accuracy"] == 0.75

    @pytest.mark.parametrize(
        ("settings", "epoch"),
        [({"metric": "score", "rule": "greater"}, 2), ({"metric": "score", "rule": "less"}, 3)],
        ids=["greater", "less"],
    )
    def test_best_checkpoint_follows_metric_and_rule(self, tmp_path: Path, settings: Any, epoch: int) -> None:
        values = iter([0.5, 0.9, 0.1])
        test_fn = lambda model, loader: {"score": next(values)}  # noqa: E731
        hooks = [
            build_hook({"type": "EvalHook", "save_best": True, "test_fn": test_fn, **settings}),
            build_hook({"type": "CheckpointHook", "best_metric": "score", "rule": settings["rule"]}),
        ]
        run = trainer(*hooks, epochs=3, val_loader=pairs(1), work_dir=tmp_path).fit()
        assert load(tmp_path / "checkpoints" / "best_score.pth")["meta"]["epoch"] == epoch
        assert {best.epoch for best in run.best.values()} == {epoch}

    def test_test_function_replaces_the_validation(self) -> None:
        received = []

        def count(model: nn.Module, loader: Any) -> dict[str, float]:
            received.append((type(model), len(loader)))
            return {"score": 0.25}

        hook = build_hook({"type": "EvalHook", "test_fn": count})
        run = trainer(hook, epochs=1, val_loader=pairs(2)).fit()
        assert received == [(nn.Sequential, 2)]
        assert run.metrics.results["val/score"] == 0.25

    def test_loader_of_the_hook_replaces_that_of_the_run(self) -> None:
        batches = []

        class Look(Hook):
            def after_val_iter(self, batch_idx: int) -> None:
                batches.append(batch_idx)

        trainer(build_hook({"type": "EvalHook", "dataloader": pairs(3)}), Look(), epochs=1).fit()
        assert batches == [0, 1, 2]

    def test_loader_of_the_run_is_the_default(self) -> None:
        # A run file cannot contain a loader, so the setting is optional.
        assert build_hook("eval").config.dataloader == "val_loader"

    def test_several_datasets_are_evaluated_by_name(self) -> None:
        hook = build_hook({"type": "EvalHook", "dataloader": {"small": pairs(1), "large": pairs(2)}})
        run = trainer(hook, epochs=1).fit()
        assert {"val/small/loss", "val/large/loss"} <= run.metrics.results.keys()

    @pytest.mark.parametrize(("efficient", "calls"), [(False, [8]), (True, [4, 4])])
    def test_function_is_called_per_batch_if_memory_is_saved(self, efficient: bool, calls: list[int]) -> None:
        sizes = []

        def share(outputs: torch.Tensor, targets: torch.Tensor) -> float:
            sizes.append(len(outputs))
            return 0.5

        hook = build_hook({"type": "EvalHook", "metrics": {"share": share}, "efficient_test": efficient})
        run = trainer(hook, epochs=1, val_loader=pairs(2)).fit()
        assert sizes == calls
        assert run.metrics.results["val/share"] == 0.5

    @pytest.mark.parametrize("point", ["after_train_epoch", "after_train_iter"])
    def test_hook_requests_at_the_point(self, point: str) -> None:
        assert point in build_hook("eval").get_triggered_stages()

    def test_distributed_hook_has_the_settings_of_the_other(self) -> None:
        cls, base = hookbus.hooks.DistEvalHook, hookbus.hooks.EvalHook
        assert issubclass(cls, base)
        assert cls.Config is base.Config


def stop_early(values: list[float], *, name: str = "loss", **settings: Any) -> tuple[Any, Run]:
    """Train with these results of validations, and return the hook and the run."""
    hook = build_hook({"type": "EarlyStoppingHook", "restore_best_weights": False, **settings})
    run = fake_training([hook], epochs=len(values), batches=1, scores=lambda epoch: {name: values[epoch - 1]}).run
    return hook, run


INF = float("inf")


class TestEarlyStopping:
    @pytest.mark.parametrize(
        ("values", "settings", "epochs"),
        [
            ([3.0, 2.0, 2.0, 2.0, 2.0], {"patience": 2}, 4),
            ([3.0, 2.0, 2.0, 1.0, 2.0], {"patience": 2}, 5),
            ([3.0, 2.0, 2.0, 2.0], {"patience": 1}, 3),
            ([3.0] + [3.0] * 11, {}, 11),
            ([3.0, 2.75, 2.5, 2.25], {"patience": 1, "min_delta": 0.25}, 2),
            ([3.0, 2.5, 2.0, 1.5], {"patience": 1, "min_delta": 0.25}, 4),
            ([3.0, 2.0, 1.0], {"patience": 1, "baseline": 2.5}, 1),
            ([2.0, 1.0, 0.5], {"patience": 1, "baseline": 2.5}, 3),
            ([3.0, float("nan"), 1.0], {}, 2),
            ([3.0, INF, 1.0], {}, 2),
            ([3.0, float("nan"), 1.0], {"check_finite": False}, 3),
            ([3.0, 0.5, 0.25], {"stopping_threshold": 0.5}, 2),
            ([3.0, 0.75, 0.625], {"stopping_threshold": 0.5}, 3),
            ([3.0, 8.0, 1.0], {"divergence_threshold": 8.0}, 2),
            ([3.0, 7.0, 1.0], {"divergence_threshold": 8.0}, 3),
        ],
        ids=[
            "patience 2",
            "improvement resets the count",
            "patience 1",
            "default patience",
            "change equal to min_delta",
            "change above min_delta",
            "baseline missed",
            "baseline beaten",
            "NaN",
            "infinity",
            "NaN allowed",
            "threshold reached",
            "threshold missed",
            "diverged",
            "not diverged",
        ],
    )
    def test_training_ends_after_the_epoch(self, values: list[float], settings: Any, epochs: int) -> None:
        assert stop_early(values, **settings)[1].epochs_done == epochs

    @pytest.mark.parametrize(
        ("mode", "name", "epochs"),
        [
            ("min", "loss", 3),
            ("max", "accuracy", 5),
            ("auto", "loss", 3),
            ("auto", "accuracy", 5),
        ],
    )
    def test_mode_determines_what_improves(self, mode: str, name: str, epochs: int) -> None:
        values = [1.0, 2.0, 3.0, 4.0, 5.0]
        settings = {"monitor": f"val_{name}", "mode": mode, "patience": 2}
        assert stop_early(values, name=name, **settings)[1].epochs_done == epochs

    @pytest.mark.parametrize(
        ("values", "threshold", "epochs"), [([0.5, 0.9, 0.95], 0.9, 2), ([0.5, 0.8, 0.85], 0.9, 3)]
    )
    def test_threshold_is_a_lower_bound_if_greater_is_better(
        self, values: list[float], threshold: float, epochs: int
    ) -> None:
        settings = {"monitor": "val_accuracy", "stopping_threshold": threshold}
        assert stop_early(values, name="accuracy", **settings)[1].epochs_done == epochs

    @pytest.mark.parametrize(
        ("attribute", "value"), [("best_score", 1.0), ("best_epoch", 2), ("wait_count", 2), ("stopped_epoch", 4)]
    )
    def test_state_is_an_attribute_of_the_hook(self, attribute: str, value: Any) -> None:
        hook, _ = stop_early([3.0, 1.0, 2.0, 2.0, 2.0], patience=2)
        assert getattr(hook, attribute) == value
        assert hook.state_dict()[attribute] == value

    def test_name_of_the_outcome_is_stopped(self) -> None:
        assert stop_early([1.0, 1.0, 1.0], patience=1)[1].outcome == "stopped"

    @pytest.mark.parametrize(("restore", "epoch"), [(True, 1), (False, 3)])
    def test_weights_of_the_best_epoch_are_restored_if_configured(self, restore: bool, epoch: int) -> None:
        weights = []

        class Look(Hook):
            def after_train_epoch(self, model: nn.Module) -> None:
                weights.append(fingerprint(model.state_dict()))

        hook = build_hook({"type": "EarlyStoppingHook", "patience": 2, "restore_best_weights": restore})
        training = fake_training([hook, Look()], epochs=5, scores=lambda epoch: {"loss": float(epoch)})
        assert fingerprint(training.model.state_dict()) == weights[epoch - 1]

    def test_metric_is_checked_at_the_end_of_a_validation(self) -> None:
        # A validation may have several loaders, so the point is that of all results.
        assert "after_val" in build_hook("early_stopping").get_triggered_stages()


def get_average(hook: Any) -> list[float]:
    return hook.averaged()["weight"].flatten().tolist()


def train_average(values: list[float], **settings: Any) -> Any:
    """Train a model whose weight has these values after the steps, from 0, and return the hook."""
    hook = build_hook({"type": "EMAHook", **settings})
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    bus = HookBus([hook])
    averages = []
    with bus.run(model=model, optimizer=optimizer, iterations=len(values)):
        for value in values:
            bus.emit("before_train_iter")
            model.weight.grad = model.weight.detach() - value
            optimizer.step()
            bus.emit("after_train_iter")
            averages += get_average(hook)
    return averages


class TestAverage:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"momentum": 0.5, "warm_up": 0}, [0.5, 0.75, 0.875]),
            ({"momentum": 0.75, "warm_up": 0}, [0.25, 0.4375, 0.578125]),
            ({"momentum": 0.5, "warm_up": 0, "interval": 2}, [0.0, 0.5, 0.5]),
            # m = (1 + i) / (3 + i): 2/4, 3/5, 4/6.
            ({"momentum": 0.9999, "warm_up": 3}, [0.5, 0.7, 0.8]),
            # The momentum is an upper bound: min(0.55, m).
            ({"momentum": 0.55, "warm_up": 3}, [0.5, 0.725, 0.84875]),
        ],
        ids=["half", "three quarters", "interval", "warm-up", "bound of the warm-up"],
    )
    def test_average_of_a_constant_weight_follows_the_formula(self, settings: Any, expected: list[float]) -> None:
        assert train_average([1.0, 1.0, 1.0], **settings) == pytest.approx(expected, rel=1e-6)

    def test_default_warm_up_limits_the_momentum_of_the_first_step(self) -> None:
        # m = 2 / 101 at the first step.
        assert train_average([1.0]) == pytest.approx([1 - 2 / 101], rel=1e-6)

    @pytest.mark.parametrize(("update", "mean"), [(True, 0.5), (False, 1.0)])
    def test_buffers_are_averaged_if_configured(self, update: bool, mean: float) -> None:
        class Count(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))
                self.register_buffer("state", torch.zeros(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.state.fill_(1.0)
                return self.weight.sum() + 0 * x.sum()

        hook = build_hook({"type": "EMAHook", "momentum": 0.5, "warm_up": 0, "update_buffers": update})
        trainer(hook, model=Count(), loss_fn=None, train_loader=[torch.zeros(1)], epochs=1).fit()
        assert hook.averaged()["state"].tolist() == [mean]

    def test_average_starts_at_the_checkpoint_of_resume_from(self, tmp_path: Path) -> None:
        first = build_hook({"type": "EMAHook", "momentum": 0.5, "warm_up": 0})
        model = nn.Linear(4, 2)
        loop = trainer(first, build_hook(PLAIN), model=model, epochs=1, work_dir=tmp_path)
        loop.fit()
        path = tmp_path / "checkpoints" / "epoch_1.pth"
        started = []

        class Look(Hook):
            priority = 90

            def before_train(self) -> None:
                started.append(fingerprint(second.averaged()))

        second = build_hook({"type": "EMAHook", "resume_from": str(path)})
        trainer(second, Look(), model=nn.Linear(4, 2), epochs=1).fit()
        assert started == [fingerprint(load(path)["ema_state_dict"])]

    @pytest.fixture
    def weights(self) -> dict[str, Any]:
        """Weight of the model at points of the last epoch, and the raw and the averaged weight at the end."""
        seen: dict[str, Any] = {}
        points = ("before_train_iter", "before_val", "before_val_epoch", "after_val_epoch", "after_epoch")

        class Look(Hook):
            priority = 0

        def make(point: str) -> Callable[..., None]:
            return lambda self, run: seen.update({point: fingerprint(run.model.state_dict())})

        for point in points:
            setattr(Look, point, make(point))
        hook = build_hook({"type": "EMAHook", "momentum": 0.5, "warm_up": 0})
        loop = trainer(hook, Look(), model=nn.Linear(4, 2), epochs=1, train_loader=pairs(1), val_loader=pairs(1))
        seen["start"] = fingerprint(loop.model.state_dict())
        run = loop.fit()
        seen["raw"], seen["averaged"] = fingerprint(loop.model.state_dict()), fingerprint(hook.averaged())
        with run.weights.applied():
            seen["by hand"] = fingerprint(loop.model.state_dict())
        seen["after by hand"] = fingerprint(loop.model.state_dict())
        return seen

    @pytest.mark.parametrize(
        ("place", "kind"),
        [
            ("before_train_iter", "start"),
            ("before_val", "averaged"),
            ("before_val_epoch", "averaged"),
            ("after_val_epoch", "averaged"),
            ("after_epoch", "raw"),
            ("by hand", "averaged"),
            ("after by hand", "raw"),
        ],
    )
    def test_model_contains_the_weights(self, weights: dict[str, Any], place: str, kind: str) -> None:
        assert weights[place] == weights[kind]
        assert weights["raw"] != weights["averaged"]


class TestProfiling:
    def test_trace_covers_the_active_iterations(self, tmp_path: Path) -> None:
        schedule = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}
        received = []
        hook = build_hook({"type": "ProfilerHook", "schedule": schedule, "on_trace_ready": received.append})
        fake_training([hook], epochs=1, batches=6, work_dir=tmp_path)
        assert len(received) == 1
        names = [path.name for path in (tmp_path / "profiler").glob("*.gz")]
        assert names == ["rank0-cycle1-iteration4.pt.trace.json.gz"]
        assert (tmp_path / "profiler" / "report.txt").read_text()

    @pytest.mark.parametrize(
        ("settings", "suffixes"),
        [
            ({}, [".pt.trace.json.gz"]),
            ({"export_tensorboard": False}, [".json.gz"]),
            ({"export_chrome_trace": False, "export_tensorboard": False}, []),
        ],
        ids=["default", "without TensorBoard", "without both"],
    )
    def test_export_settings_determine_the_trace_files(
        self, tmp_path: Path, settings: Any, suffixes: list[str]
    ) -> None:
        hook = build_hook({"type": "ProfilerHook", "profile_iters": 4, **settings})
        fake_training([hook], epochs=1, batches=5, work_dir=tmp_path)
        names = [path.name for path in (tmp_path / "profiler").glob("*.gz")]
        assert [name.removeprefix(name.split(".")[0]) for name in names] == suffixes

    def test_trace_of_tensorboard_is_a_chrome_trace(self) -> None:
        with pytest.raises(ConfigError, match="export_chrome_trace: no effect while export_tensorboard is true, got F"):
            build_hook({"type": "ProfilerHook", "export_chrome_trace": False})

    @pytest.mark.parametrize("enabled", [True, False])
    def test_floating_point_operations_are_reported_if_configured(self, tmp_path: Path, enabled: bool) -> None:
        hook = build_hook({"type": "ProfilerHook", "profile_iters": 4, "with_flops": enabled})
        trainer(hook, train_loader=pairs(5), epochs=1, work_dir=tmp_path).fit()
        assert ("FLOP" in (tmp_path / "profiler" / "report.txt").read_text()) is enabled

    @pytest.mark.parametrize("key", ["wait", "warmup", "active", "repeat"])
    def test_part_of_the_schedule_is_a_setting(self, key: str) -> None:
        assert getattr(build_hook({"type": "ProfilerHook", "schedule": {key: 3}}).config.schedule, key) == 3

    @pytest.mark.parametrize(
        ("threshold", "count"), [(1e-6, 1), (1e6, 0)], ids=["above the threshold", "below the threshold"]
    )
    def test_memory_above_the_threshold_is_a_warning(
        self, caplog: pytest.LogCaptureFixture, threshold: float, count: int
    ) -> None:
        hook = build_hook({"type": "MemoryProfilerHook", "interval": 1, "warn_threshold": threshold, "log_gpu": False})
        fake_training([hook], epochs=1, batches=2)
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == count

    @pytest.mark.parametrize(("enabled", "count"), [(True, 2), (False, 0)])
    def test_host_memory_is_logged_every_interval_iterations(self, enabled: bool, count: int) -> None:
        recorder = Recorder()
        hook = build_hook({"type": "MemoryProfilerHook", "interval": 2, "log_cpu": enabled})
        fake_training([hook, recorder], epochs=1, batches=4)
        assert len(recorder.get_curve("memory/process_gb")) == count

    @pytest.mark.parametrize(("enabled", "steps"), [(True, [2, 4]), (False, [])])
    def test_remaining_time_is_logged_if_configured(self, enabled: bool, steps: list[int]) -> None:
        recorder = Recorder()
        trainer(
            build_hook({"type": "IterTimerHook", "interval": 2, "log_eta": enabled}),
            recorder,
            train_loader=pairs(4),
            epochs=1,
        ).fit()
        assert [step for step, _ in recorder.get_curve("time/eta")] == steps

    @pytest.mark.parametrize(
        "name", ["time/data", "time/iter", "throughput/samples_per_second", "throughput/iterations_per_second"]
    )
    def test_timer_logs_the_value(self, name: str) -> None:
        recorder = Recorder()
        fake_training([build_hook({"type": "IterTimerHook", "interval": 3}), recorder], epochs=1)
        ((step, value),) = recorder.get_curve(name)
        assert step == 3
        assert value > 0

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "section", ["data", "forward", "backward", "optimizer"], ids=["data", "forward", "backward", "optimizer"]
    )
    def test_report_contains_the_duration_of_the_part(self, tmp_path: Path, section: str) -> None:
        hook = build_hook({"type": "ProfilerHook", "profile_iters": 4})
        trainer(hook, train_loader=pairs(4), epochs=1, work_dir=tmp_path).fit()
        assert section in (tmp_path / "profiler" / "report.txt").read_text()


IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def visualize(work_dir: Path | None = None, batches: int = 2, **settings: Any) -> Recorder:
    """Train a classifier of images, and return the logged images."""
    recorder = Recorder()
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 3))
    hook = build_hook({"type": "VisualizationHook", "interval": 1, "backend": "pillow", **settings})
    loader = [(IMAGES, torch.tensor([0, 1, 2, 0]))] * batches
    trainer(hook, recorder, model=model, train_loader=loader, epochs=1, work_dir=work_dir).fit()
    return recorder


class TestImages:
    @pytest.mark.parametrize(("save", "count"), [(True, 2), (False, 0)])
    def test_files_are_saved_if_configured(self, tmp_path: Path, save: bool, count: int) -> None:
        visualize(tmp_path, save=save)
        assert len(list(tmp_path.rglob("*.png"))) == count

    def test_absolute_out_dir_contains_the_files(self, tmp_path: Path) -> None:
        visualize(tmp_path / "run", batches=1, out_dir=str(tmp_path / "own"))
        assert len(list((tmp_path / "own").rglob("*.png"))) == 1

    def test_interval_counts_iterations(self, tmp_path: Path) -> None:
        visualize(tmp_path, batches=5, interval=2)
        assert len(list(tmp_path.rglob("*.png"))) == 2

    @pytest.mark.parametrize("backend", ["matplotlib", "pillow"])
    def test_record_is_logged_by_the_backend(self, backend: str) -> None:
        assert "train/visualization/predictions" in visualize(batches=1, backend=backend).images

    def test_number_of_samples_is_limited(self) -> None:
        images = visualize(batches=1, backend="tensorboard", max_samples=3).images
        assert len(images) == 3

    @pytest.mark.parametrize(("setting", "text"), [("draw_gt", "true 0"), ("draw_pred", "predicted")])
    @pytest.mark.parametrize("enabled", [True, False])
    def test_truth_and_prediction_are_drawn_if_configured(self, setting: str, text: str, enabled: bool) -> None:
        captions = []

        class Captions(Hook):
            def log_images(self, caption: str) -> None:
                captions.append(caption)

        hook = build_hook({"type": "VisualizationHook", "interval": 1, "backend": "tensorboard", setting: enabled})
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
        loader = [(IMAGES, torch.tensor([0, 1, 2, 0]))]
        trainer(hook, Captions(), model=model, train_loader=loader, epochs=1).fit()
        assert (text in captions[0]) is enabled

    @pytest.mark.parametrize("content", ["predictions", "feature_maps", "gradients", "cam"])
    def test_content_is_rendered(self, content: str) -> None:
        tags = visualize(batches=1, content=[content]).images
        assert tags
        assert all(content.removesuffix("s") in tag for tag in tags)

    @pytest.mark.parametrize("hook", ["VisualizationHook", "DetVisualizationHook", "SegVisualizationHook"])
    @pytest.mark.parametrize("point", ["after_train_iter", "after_val_iter"])
    def test_image_hook_listens_at_the_point(self, hook: str, point: str) -> None:
        assert point in build_hook({"type": hook}).get_triggered_stages()


FULL = """
work_dir: run
seed: 0
model: {type: "parts:net"}
dataset: {type: "parts:points", batch_size: 8}
loss: cross_entropy
metrics: [accuracy]
training: {epochs: 2}
device: cpu
hooks:
  - type: CheckpointHook
    interval: 1
    max_keep_ckpts: 3
    save_best: true
    best_metric: accuracy
    rule: greater
  - type: LoggerHook
    interval: 50
  - type: TensorBoardHook
    log_dir: tensorboard_logs
    interval: 4
    log_graph: true
  - type: EvalHook
    interval: 1
    save_best: true
    metric: accuracy
  - type: EarlyStoppingHook
    monitor: val_loss
    patience: 10
    mode: min
    restore_best_weights: true
  - type: EMAHook
    momentum: 0.9999
    warm_up: 500
  - type: VisualizationHook
    interval: 500
    max_samples: 8
    save: true
"""
DISTRIBUTED = """
work_dir: run
model: {type: "parts:net"}
dataset: {type: "parts:points", batch_size: 8}
loss: cross_entropy
metrics: [accuracy]
training: {epochs: 2}
device: cpu
hooks:
  - type: CheckpointHook
    interval: 1
    max_keep_ckpts: 3
  - type: LoggerHook
    interval: 50
  - type: DistEvalHook
    interval: 1
  - type: EMAHook
    momentum: 0.9999
"""
PROFILING = """
work_dir: run
model: {type: "parts:net"}
dataset: {type: "parts:points", batch_size: 8}
loss: cross_entropy
training: {epochs: 2}
device: cpu
default_hooks: false
hooks:
  - type: ProfilerHook
    profile_iters: 8
    schedule:
      wait: 1
      warmup: 1
      active: 6
    record_shapes: true
    profile_memory: true
    export_chrome_trace: true
  - type: MemoryProfilerHook
    interval: 4
    warn_threshold: 1000.0
  - type: IterTimerHook
    interval: 4
"""


ALL_FILES = ["best_accuracy.pth", "epoch_1.pth", "epoch_2.pth", "last.pth"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "checkpoints", "others"),
    [
        (FULL, ALL_FILES, ["run/tensorboard_logs/events.*"]),
        (DISTRIBUTED, ALL_FILES, []),
        (PROFILING, [], ["run/profiler/report.txt"]),
    ],
    ids=["full", "distributed", "profiling"],
)
def test_run_file_trains_to_the_end_and_writes_its_files(
    project: Project, text: str, checkpoints: list[str], others: list[str]
) -> None:
    run = Trainer.from_file(project.write(text)).fit()
    assert (run.outcome, run.epochs_done) == ("finished", 2)
    assert list_checkpoints(Path("run")) == checkpoints
    assert all(list(Path().glob(pattern)) for pattern in others)


FLOW = [
    "before_run",
    "before_train",
    *[
        "before_epoch",
        "before_train_epoch",
        *["before_train_iter", "after_train_iter"] * 2,
        "after_train_epoch",
        "before_val_epoch",
        *["before_val_iter", "after_val_iter"] * 1,
        "after_val_epoch",
        "after_epoch",
    ]
    * 2,
    "after_train",
    "after_run",
]


def test_flow_of_a_training_nests_iterations_in_epochs() -> None:
    calls: list[str] = []

    class Look(Hook):
        pass

    def make(point: str) -> Callable[..., None]:
        return lambda self: calls.append(point)

    for point in set(FLOW):
        setattr(Look, point, make(point))
    trainer(Look(), train_loader=pairs(2), val_loader=pairs(1), epochs=2).fit()
    assert calls == FLOW
