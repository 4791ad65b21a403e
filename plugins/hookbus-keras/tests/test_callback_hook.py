"""Callbacks of Keras in trainings of hookbus."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import torch
from keras import callbacks

from hookbus import Hook, HookBus, Trainer
from hookbus.errors import ConfigError, HookError
from hookbus.testing import Training, fake_training
from hookbus_keras import KerasCallbackHook

WORSE = {"scores": lambda number: {"loss": float(number)}}


def train(callback: Any, *hooks: Any, **options: Any) -> Training:
    """Train 4 epochs of 3 iterations, each of which is validated."""
    return fake_training([KerasCallbackHook(callback), *hooks], **{"epochs": 4, **WORSE, **options})


def get_rate(training: Training) -> float:
    return float(training.run.optimizer.param_groups[0]["lr"])


class TestStockCallbacks:
    def test_early_stopping_stops_and_restores_the_best_weights(self) -> None:
        weights = []

        class Remember(Hook):
            def after_epoch(self, model: Any) -> None:
                weights.append([tensor.clone() for tensor in model.state_dict().values()])

        callback = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
        training = train(callback, Remember())
        assert training.run.stop_reasons == ["EarlyStopping: EarlyStopping set stop_training"]
        assert (training.run.epochs_done, training.run.outcome) == (2, "stopped")
        assert all(map(torch.equal, training.model.state_dict().values(), weights[0]))

    def test_reduce_lr_on_plateau_reduces_the_rate(self) -> None:
        initial = get_rate(fake_training())
        training = train(callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1), epochs=3)
        assert get_rate(training) == pytest.approx(initial / 4)

    def test_learning_rate_scheduler_sets_the_rate_of_the_epoch(self) -> None:
        training = train(callbacks.LearningRateScheduler(lambda epoch, rate: 0.5**epoch))
        assert get_rate(training) == 0.125

    def test_csv_logger_writes_the_names_of_keras(self, tmp_path: Path) -> None:
        train(callbacks.CSVLogger(str(tmp_path / "log.csv")), epochs=2)
        with (tmp_path / "log.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [(row["epoch"], float(row["val_loss"])) for row in rows] == [("0", 1.0), ("1", 2.0)]
        assert all(math.isfinite(float(row["loss"])) for row in rows)

    def test_terminate_on_nan_stops_at_the_iteration(self, capsys: pytest.CaptureFixture[str]) -> None:
        training = train(callbacks.TerminateOnNaN(), losses=lambda number: math.nan if number == 5 else 1.0)
        assert (training.run.iters_done, training.run.outcome) == (5, "stopped")
        assert "Invalid loss" in capsys.readouterr().out

    def test_history_contains_an_entry_per_epoch(self) -> None:
        callback = callbacks.History()
        train(callback)
        assert callback.history["val_loss"] == [1.0, 2.0, 3.0, 4.0]
        assert (callback.epoch, len(callback.history["loss"])) == ([0, 1, 2, 3], 4)

    def test_progress_bar_shows_the_epochs(self, capsys: pytest.CaptureFixture[str]) -> None:
        train(callbacks.ProgbarLogger(), epochs=2)
        output = capsys.readouterr().out
        assert "Epoch 2/2" in output
        assert "3/3" in output

    def test_lambda_callback_receives_all_events(self) -> None:
        seen: list[Any] = []
        callback = callbacks.LambdaCallback(
            on_train_begin=lambda logs: seen.append("begin"),
            on_epoch_begin=lambda epoch, logs: seen.append(("epoch", epoch)),
            on_train_batch_begin=lambda batch, logs: seen.append(batch),
            on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]),
            on_epoch_end=lambda epoch, logs: seen.append(sorted(logs)),
            on_train_end=lambda logs: seen.append("end"),
        )
        train(callback, epochs=1, losses=float)
        begin, epoch, *batches, logs, end = seen
        assert (begin, epoch, end) == ("begin", ("epoch", 0), "end")
        assert batches == [0, 1.0, 1, 2.0, 2, 3.0]
        assert {"loss", "val_loss"} <= set(logs)

    def test_remote_monitor_sends_each_epoch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        requests = pytest.importorskip("requests")
        sent: list[Any] = []
        monkeypatch.setattr(requests, "post", lambda url, json, headers: sent.append(json))
        train(callbacks.RemoteMonitor(send_as_json=True))
        assert [(entry["epoch"], entry["val_loss"]) for entry in sent] == [(0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0)]

    @pytest.mark.parametrize("name", ["ModelCheckpoint", "BackupAndRestore", "SwapEMAWeights", "TensorBoard"])
    def test_callbacks_that_need_a_model_of_keras_are_refused(self, name: str) -> None:
        arguments = {"ModelCheckpoint": ["m.keras"], "BackupAndRestore": ["backup"]}.get(name, [])
        with pytest.raises(ConfigError, match=rf"callback: {name} .* Use \w+Hook"):
            KerasCallbackHook(getattr(callbacks, name)(*arguments))


class TestKerasCallbackHook:
    def test_own_callback_that_needs_more_names_what_is_missing(self) -> None:
        class Summary(callbacks.Callback):  # type: ignore[misc]
            def on_train_begin(self, logs: Any = None) -> None:
                self.model.summary()

        with pytest.raises(AttributeError, match="Summary: the model of a run of hookbus has no attribute 'summary'"):
            train(Summary())

    def test_callback_without_methods_for_batches_needs_no_losses(self) -> None:
        assert not KerasCallbackHook(callbacks.EarlyStopping()).needs.loss
        assert KerasCallbackHook(callbacks.TerminateOnNaN()).needs.loss

    def test_other_objects_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="expected a keras.callbacks.Callback, got type"):
            KerasCallbackHook(callbacks.EarlyStopping)

    def test_schedules_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="the callback is called as in Keras"):
            KerasCallbackHook(callbacks.History(), frequency=2)

    def test_monitored_metric_without_a_direction_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="should be 'min' or 'max' for monitor='val_accuracy', got 'auto'"):
            train(callbacks.EarlyStopping("val_accuracy"))

    def test_monitored_metric_requires_a_validation(self) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hook = KerasCallbackHook(callbacks.EarlyStopping("val_loss"))
        data = [(torch.ones(2, 1), torch.ones(2, 1))]
        options = {"model": model, "optimizer": optimizer, "train_loader": data, "hooks": [hook]}
        trainer = Trainer(**options, loss_fn=torch.nn.functional.mse_loss, epochs=1)
        with pytest.raises(ConfigError, match="requires 'val_loss' of a validation"):
            trainer.fit()

    def test_model_is_required(self) -> None:
        with pytest.raises(ConfigError, match="requires the model of the run, got None"):
            HookBus([KerasCallbackHook(callbacks.History())]).open()

    def test_several_learning_rates_are_an_error(self) -> None:
        model = torch.nn.Linear(1, 1)
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
        bus = HookBus([KerasCallbackHook(callbacks.LearningRateScheduler(lambda epoch: 0.1))])
        run = bus.open(model=model, optimizer=torch.optim.SGD(groups))
        with pytest.raises(HookError, match=r"reads and sets one learning rate, got 0\.1, 0\.2"):
            bus.emit("before_train_epoch")
        run.close()

    def test_rate_of_a_capturable_optimizer_is_set_in_place(self) -> None:
        model, rate = torch.nn.Linear(1, 1), torch.tensor(0.1)
        bus = HookBus([KerasCallbackHook(callbacks.LearningRateScheduler(lambda epoch: 0.5))])
        run = bus.open(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
        bus.emit("before_train_epoch")
        run.close()
        assert rate.item() == 0.5

    def test_epoch_without_a_validation_has_no_results_of_one(self) -> None:
        logs: list[Any] = []
        hook = KerasCallbackHook(callbacks.LambdaCallback(on_epoch_end=lambda epoch, entry: logs.append(dict(entry))))
        bus = HookBus([hook])
        run = bus.open(model=torch.nn.Linear(1, 1))
        for epoch in range(2):
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter", outputs={"loss": torch.tensor(2.0)})
            bus.emit("after_train_epoch")
            if epoch == 0:
                run.begin_validation()
                run.end_validation({"accuracy": 0.5})
            bus.emit("after_epoch")
        run.close()
        assert logs == [{"loss": 2.0, "val_accuracy": 0.5}, {"loss": 2.0}]

    def test_continued_training_reports_that_the_callback_has_no_state(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = HookBus([KerasCallbackHook(callbacks.History())])
        for _ in range(2):
            run = bus.open(model=torch.nn.Linear(1, 1))
            bus.emit("after_train_iter")
            run.close()
        assert caplog.text.count("hook 'History': the callback starts from scratch") == 1
