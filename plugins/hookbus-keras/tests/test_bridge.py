"""Runs that `fit` and `evaluate` of a Keras model drive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
import numpy as np
import torch

from hookbus import Hook, HookBus
from hookbus.errors import ConfigError, RequestError
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook
from hookbus_keras import KerasBridge

from .toys import INPUTS, TARGETS, build_model, copy_weights, fit

ITERATION = [
    "before_train_iter",
    "after_forward",
    "after_backward",
    "before_optimizer_step",
    "after_optimizer_step",
    "after_train_iter",
]
VALIDATION = ["before_val", "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch", "after_val"]
EPOCH = ["before_epoch", "before_train_epoch", *ITERATION, "after_train_epoch"]


def attach(hooks: list[Any], model: Any, **options: Any) -> KerasBridge:
    bridge = KerasBridge(hooks if isinstance(hooks, HookBus) else HookBus(hooks), model, **options)
    bridge.attach()
    return bridge


class StopAt(keras.callbacks.Callback):
    """Stop `fit` after a batch or an epoch, as callbacks of Keras do."""

    def __init__(self, batch: int = 0, epoch: int = 0) -> None:
        super().__init__()
        self.batch, self.epoch, self.batches = batch, epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.model.stop_training |= self.batches == self.batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= epoch + 1 == self.epoch


class TestFit:
    @pytest.mark.parametrize(
        ("stop", "outcome", "epochs", "iterations"),
        [
            ({"batch": 8}, "stopped", 1, 8),  # within the second of three epochs of 6 batches
            ({"batch": 12}, "stopped", 2, 12),
            ({"batch": 18}, "finished", 3, 18),
            ({"epoch": 2}, "stopped", 2, 12),
            ({"epoch": 3}, "finished", 3, 18),
        ],
    )
    def test_callback_that_stops_fit_stops_the_run(
        self, stop: dict[str, int], outcome: str, epochs: int, iterations: int
    ) -> None:
        model = build_model()
        bridge = attach([], model)
        fit(model, 3, validate=True, callbacks=[StopAt(**stop)])
        run = bridge.active_run
        assert (run.outcome, run.epochs_done, run.iters_done) == (outcome, epochs, iterations)
        assert run.stop_reasons == (["loop: stopped by Keras"] if outcome == "stopped" else [])

    def test_points_are_those_of_a_trainer(self) -> None:
        bus = RecordingBus()
        model = build_model()
        attach(bus, model)
        fit(model, validate=True, batch_size=24)
        begin, end = ["before_run", "before_train"], ["after_train", "after_run", "cleanup"]
        assert bus.emitted_points == [*begin, *EPOCH, *VALIDATION, "after_epoch", *end]

    def test_counts_and_results_are_those_of_keras(self) -> None:
        model = build_model(metrics=["accuracy"])
        bridge = attach([], model)
        history = fit(model, 2, validate=True).history
        run = bridge.run
        assert (run.outcome, run.epochs_done, run.iters_done, run.steps_done, run.samples_done) == (
            "finished",
            2,
            12,
            12,
            48,
        )
        assert run.metrics.results["val/loss"] == history["val_loss"][-1]
        assert run.metrics.results["val/accuracy"] == history["val_accuracy"][-1]
        assert int(model.optimizer.iterations.value) == 12

    def test_report_contains_the_results(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = build_model()
        attach([], model, work_dir=tmp_path)
        fit(model, validate=True)
        assert "val/loss" in (tmp_path / "report.html").read_text()
        assert "report.html" not in caplog.text  # that it cannot be written

    def test_loss_of_the_iterations_is_that_of_the_batch(self) -> None:
        losses = []
        model = build_model()
        bus = HookBus()
        bus.on("after_train_iter")(lambda loss: losses.append(float(loss)))
        attach(bus, model)
        history = fit(model).history
        assert np.mean(losses) == pytest.approx(history["loss"][0], abs=1e-6)
        assert len(set(losses)) == 6

    def test_training_is_that_of_keras_alone(self) -> None:
        alone = build_model()
        fit(alone, 2, validate=True)
        model = build_model()
        attach([], model)
        fit(model, 2, validate=True)
        assert all(map(torch.equal, copy_weights(model), copy_weights(alone)))

    def test_averaged_weights_are_validated(self) -> None:
        model, evaluated, ema = build_model(), [], EMAHook(momentum=0.5, warm_up=0)
        bus = HookBus([ema])
        bus.on("after_val")(lambda: evaluated.append(copy_weights(model)))
        bridge = attach(bus, model)
        fit(model, validate=True)
        averages = [bridge.run.weights.averaged()[name] for name, _ in model.named_parameters()]
        assert all(map(torch.equal, evaluated[0], averages))
        assert not torch.equal(averages[-1], copy_weights(model)[-1])

    def test_stop_ends_training_after_the_iteration(self) -> None:
        bus, model = HookBus(), build_model()
        bus.on("after_train_iter")(lambda run: run.iters_done == 8 and run.request_stop("enough"))
        bridge = attach(bus, model)
        history = fit(model, 5)
        assert (bridge.run.iters_done, bridge.run.outcome, len(history.epoch)) == (8, "stopped", 2)

    def test_stop_at_the_end_of_an_epoch_leaves_it_complete(self) -> None:
        bus, model = HookBus(), build_model()
        bus.on("after_val")(lambda run: run.request_stop("enough"))
        bridge = attach(bus, model)
        fit(model, 5, validate=True)
        assert (bridge.run.epochs_done, bridge.run.iters_done, bridge.run.outcome) == (1, 6, "stopped")

    def test_requests_that_keras_cannot_execute_are_refused(self) -> None:
        bus, model = HookBus(), build_model()
        bus.on("after_train_iter")(lambda run: run.request_stop_epoch())
        attach(bus, model)
        with pytest.raises(RequestError, match="stop of the epoch, which Keras does not carry out"):
            fit(model)

    def test_failure_ends_the_run(self) -> None:
        model, error = build_model(), ValueError("broken batch")

        class Failing(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if batch == 3:
                    raise error

        bus = RecordingBus()
        bridge = attach(bus, model)
        with pytest.raises(ValueError, match="broken batch"):
            fit(model, callbacks=[Failing()])
        assert (bridge.run.outcome, bridge.run.exception, bridge.run.iters_done) == ("failed", error, 4)
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        fit(model)
        assert bridge.run.outcome == "finished"

    def test_second_fit_is_a_new_run(self) -> None:
        model = build_model()
        bridge = attach([], model)
        fit(model, 2)
        fit(model, 3)
        assert (bridge.run.epochs_done, bridge.run.iters_done, bridge.run.max_epochs) == (3, 18, 3)

    def test_fit_with_an_initial_epoch_continues_the_previous_one(self) -> None:
        model = build_model()
        bridge = attach([], model)
        fit(model, 2)
        fit(model, 3, initial_epoch=2)
        assert (bridge.run.epochs_done, bridge.run.iters_done) == (3, 18)

    def test_initial_epoch_without_a_state_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        model = build_model()
        bridge = attach([], model)
        fit(model, 3, initial_epoch=1)
        assert (bridge.run.epochs_done, bridge.run.max_epochs, bridge.run.outcome) == (2, 2, "finished")
        assert "fit: begins at epoch 1 without a state of hookbus" in caplog.text

    def test_compiled_step_is_refused(self) -> None:
        model = build_model(jit_compile=True)
        bridge = attach([], model)
        with pytest.raises(ConfigError, match="jit_compile: a compiled step emits no events, got True"):
            fit(model)
        assert bridge.run is None

    def test_callback_list_is_refused(self) -> None:
        model = build_model()
        attach([], model)
        with pytest.raises(ConfigError, match="got a CallbackList"):
            fit(model, callbacks=keras.callbacks.CallbackList())

    def test_callbacks_may_be_positional(self) -> None:
        model, seen = build_model(), []
        bridge = attach([], model)
        callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
        model.fit(INPUTS, TARGETS, 4, 2, 0, callback)
        assert (seen, bridge.run.epochs_done) == ([0, 1], 2)

    def test_detached_model_emits_nothing(self) -> None:
        bus, model = RecordingBus(), build_model()
        names = ("fit", "evaluate", "train_step", "test_step", "compute_loss", "save", "save_weights", "load_weights")
        bridge = attach(bus, model)
        fit(model)
        bridge.detach()
        before = len(bus.emitted_points)
        fit(model)
        model.evaluate(INPUTS, TARGETS, verbose=0)
        assert len(bus.emitted_points) == before
        assert not set(names) & vars(model).keys()
        assert "apply" not in vars(model.optimizer)

    def test_second_bus_is_refused_until_the_first_is_detached(self) -> None:
        model = build_model()
        bridge = attach([], model)
        with pytest.raises(ConfigError, match=r"connected with a bus already\. Call detach\(\)"):
            attach([], model)
        bridge.detach()
        attach([], model)

    def test_aborted_training_is_neither_validated_nor_saved(self, tmp_path: Path) -> None:
        bus, model = RecordingBus(), build_model()
        bus.on("after_train_iter")(lambda run: run.iters_done == 8 and run.request_abort("loss is NaN"))
        bridge = attach(bus, model)
        save = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
        fit(model, 4, validate=True, callbacks=[save])
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted", 8)
        assert bus.emitted_points.count("before_val") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["1.keras"]

    @pytest.mark.parametrize("point", ["after_train_iter", "before_save_checkpoint"])
    def test_aborted_training_keeps_its_backup(self, tmp_path: Path, point: str) -> None:
        bus, model = HookBus(), build_model()
        bus.on(point)(lambda run: run.iters_done == 12 and run.request_abort("loss is NaN"))  # the end of epoch 2
        bridge = attach(bus, model)
        backup = keras.callbacks.BackupAndRestore(tmp_path)  # deletes its directory at the end of a training
        fit(model, 4, callbacks=[backup])
        assert (bridge.run.outcome, bridge.run.epochs_done) == ("aborted", 2)
        assert json.loads((tmp_path / "training_metadata.json").read_text()) == {"epoch": 1, "batch": 0}
        fit(model, 1, callbacks=[backup])  # complete: the methods of the callback are restored
        assert not tmp_path.exists()

    def test_hooks_that_need_layers_are_refused(self) -> None:
        from hookbus import Needs

        class NeedsLayers(Hook):
            needs = Needs(modules=True)

        with pytest.raises(ConfigError, match="layers that are modules of torch.nn, which Keras does not provide"):
            attach([NeedsLayers()], build_model())

    def test_length_of_an_epoch_is_known_for_arrays(self) -> None:
        bus, model, lengths = HookBus(), build_model(), []
        bus.on("before_train")(lambda run: lengths.append(run.epoch_length))
        attach(bus, model)
        fit(model)
        assert lengths == [6]

    def test_other_backends_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
        with pytest.raises(ConfigError, match="the backend should be 'torch', got 'jax'. Set the environment variable"):
            attach([], build_model())

    def test_several_ranks_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        model = build_model()
        with pytest.raises(ConfigError, match="ranks: `fit` does not synchronize gradients .*, got 2 ranks"):
            attach([], model)
        assert "fit" not in vars(model)


class TestEvaluate:
    def test_evaluation_outside_of_fit_is_a_test(self) -> None:
        bus, model = RecordingBus(), build_model()
        bridge = attach(bus, model)
        loss = model.evaluate(INPUTS, TARGETS, batch_size=24, verbose=0)
        points = [point.replace("val", "test") for point in VALIDATION]
        assert bus.emitted_points == ["before_run", *points, "after_run", "cleanup"]
        assert (bridge.run.mode, dict(bridge.run.metrics.results)) == ("test", {"test/loss": loss})

    def test_averaged_weights_are_tested(self) -> None:
        model = build_model()
        bridge = attach([EMAHook(momentum=0.5, warm_up=0)], model)
        fit(model, validate=True)
        result = model.evaluate(INPUTS[:8], TARGETS[:8], verbose=0)
        assert result == pytest.approx(bridge.run.metrics.results["val/loss"], abs=1e-6)
        bridge.detach()
        assert result != pytest.approx(model.evaluate(INPUTS[:8], TARGETS[:8], verbose=0), abs=1e-6)

    def test_failure_ends_the_test(self) -> None:
        bus, model = RecordingBus(), build_model()
        bridge = attach(bus, model)
        with pytest.raises((ValueError, RuntimeError), match="incompatible"):
            model.evaluate(INPUTS[:, :2], TARGETS, verbose=0)
        assert (bridge.run.outcome, bus.emitted_points[-1]) == ("failed", "cleanup")

    def test_evaluation_within_fit_by_a_callback_emits_nothing(self) -> None:
        bus, model = RecordingBus(), build_model()
        attach(bus, model)

        class Evaluate(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.evaluate(INPUTS[:8], TARGETS[:8], verbose=0)

        fit(model, callbacks=[Evaluate()])
        assert not [point for point in bus.emitted_points if "val" in point or "test" in point]


class TestHostCheckpoints:
    def test_file_contains_the_state_after_the_epoch(self, tmp_path: Path) -> None:
        bus, model = RecordingBus(), build_model()
        attach(bus, model)
        fit(model, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")])
        points = bus.emitted_points
        assert points[points.index("after_epoch") :][1:3] == ["before_save_checkpoint", "after_save_checkpoint"]
        assert bus.get_arguments("after_save_checkpoint")[0]["path"] == tmp_path / "m.keras"

    @pytest.mark.parametrize("name", ["m.weights.h5", "m.keras"])
    def test_continued_training_equals_the_uninterrupted_one(self, tmp_path: Path, name: str) -> None:
        def train(epochs: int, initial_epoch: int = 0) -> tuple[Any, list[torch.Tensor]]:
            model = build_model()
            bridge = attach([EMAHook(momentum=0.5, warm_up=0)], model)
            if initial_epoch:
                model.load_weights(tmp_path / name)
            save = keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=name.endswith("h5"))
            fit(model, epochs, validate=True, initial_epoch=initial_epoch, callbacks=[save])
            return bridge.run, [*copy_weights(model), *bridge.run.weights.averaged().values()]

        run, expected = train(3)
        train(2)
        resumed, weights = train(3, initial_epoch=2)
        assert (resumed.iters_done, resumed.steps_done, resumed.epochs_done) == (18, 18, 3)
        assert resumed.metrics.results == run.metrics.results
        assert all(map(torch.equal, weights, expected))

    def test_backup_and_restore_sets_the_epoch(self, tmp_path: Path) -> None:
        for epochs in (2, 3):
            model = build_model()
            bridge = attach([], model)
            backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
            history = fit(model, epochs, callbacks=[backup])
        assert (history.epoch, bridge.run.epochs_done, bridge.run.iters_done) == ([2], 3, 18)

    def test_other_epoch_than_that_of_the_state_is_refused(self, tmp_path: Path) -> None:
        model = build_model()
        attach([], model)
        fit(model, 2, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "m.weights.h5", save_weights_only=True)])
        model.load_weights(tmp_path / "m.weights.h5")
        with pytest.raises(ConfigError, match="has 2 complete epochs. Pass initial_epoch=2"):
            fit(model, 2)

    def test_state_within_an_epoch_is_refused(self, tmp_path: Path) -> None:
        model, path = build_model(), tmp_path / "m.weights.h5"
        attach([], model)
        fit(model, callbacks=[keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=4)])
        model.load_weights(path)
        with pytest.raises(ConfigError, match="was saved within epoch 1, after 4 iterations"):
            fit(model)

    def test_file_of_keras_alone_is_reported_in_fit_only(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        model, path = build_model(), tmp_path / "m.weights.h5"
        fit(model)
        model.save_weights(path)
        attach([], model)
        model.load_weights(path)
        fit(model)
        assert "saved without hookbus" not in caplog.text
        load = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: model.load_weights(path))
        fit(model, callbacks=[load])
        assert "The checkpoint of Keras was saved without hookbus" in caplog.text

    def test_file_without_space_for_the_state_is_reported(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = build_model()
        attach([], model)
        save = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: model.save(tmp_path / "folder", zipped=False)
        )
        fit(model, callbacks=[save])
        assert "folder: saved without the state of the hooks" in caplog.text

    def test_files_outside_of_fit_are_those_of_keras(self, tmp_path: Path) -> None:
        from hookbus_keras.files import read_state

        model = build_model()
        attach([], model)
        fit(model)
        model.save(tmp_path / "m.keras")
        assert read_state(tmp_path / "m.keras") == {}


class TestHookbusCheckpoints:
    def test_resumed_training_equals_the_uninterrupted_one(self, tmp_path: Path) -> None:
        def train(directory: Path, epochs: int, resume: str = "never") -> tuple[Any, list[torch.Tensor]]:
            model = build_model()
            hooks = [CheckpointHook(save_best=False), EMAHook(momentum=0.5, warm_up=0)]
            bridge = attach(hooks, model, checkpoints="hookbus", work_dir=directory, resume=resume)
            fit(model, epochs, validate=True)
            return bridge.run, [*copy_weights(model), *bridge.run.weights.averaged().values()]

        run, expected = train(tmp_path / "whole", 3)
        train(tmp_path / "parts", 2)
        resumed, weights = train(tmp_path / "parts", 3, "auto")
        assert (resumed.iters_done, resumed.epochs_done) == (18, 3)
        assert resumed.metrics.results == run.metrics.results
        assert all(map(torch.equal, weights, expected))

    def test_complete_training_is_not_repeated(self, tmp_path: Path) -> None:
        for _ in range(2):
            model = build_model()
            bridge = attach(
                [CheckpointHook(save_best=False)], model, checkpoints="hookbus", work_dir=tmp_path, resume="auto"
            )
            history = fit(model, 2)
        assert (history.epoch, bridge.run.iters_done) == ([], 12)

    def test_checkpoint_hook_requires_the_mode(self) -> None:
        with pytest.raises(ConfigError, match="pass checkpoints='hookbus'"):
            attach([CheckpointHook()], build_model())

    def test_files_of_keras_contain_no_state(self, tmp_path: Path) -> None:
        from hookbus_keras.files import read_state

        model = build_model()
        hooks = [CheckpointHook(save_best=False)]
        attach(hooks, model, checkpoints="hookbus", work_dir=tmp_path / "run")
        fit(model, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "m.keras")])
        assert read_state(tmp_path / "m.keras") == {}
