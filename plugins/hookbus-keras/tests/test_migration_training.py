"""Rows of docs/coming-from.md: built-in callbacks of Keras that change or save the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
import numpy as np
import torch
from keras import callbacks

from hookbus import Hook, Trainer
from hookbus.checkpoint import read_checkpoint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_guards import CheckInvalidLossHook
from hookbus_schedule import ParamSchedulerHook

from .migration import BATCHES, VAL_LOSSES, WEIGHT, attach, build_line, covers, fit, get_weight


def compute_outputs(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    """Return the output of a model, and its mean as the loss."""
    output = model(batch[0])
    return {"loss": output.mean(), "output": output}


def train(*hooks: Any, epochs: int, rate: float = 1.0, scores: Any = None) -> Any:
    """Train a model of torch in the Trainer, and return the run.

    Args:
        hooks: Hooks.
        epochs: Number of epochs, of one batch.
        rate: Learning rate.
        scores: Result of the validation after each epoch.
    """
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    results = iter(scores or [0.0] * epochs)
    return Trainer(
        model,
        optimizer,
        step_fn=compute_outputs,
        train_loader=[(torch.ones(1, 1), torch.ones(1))],
        val_loader=[(torch.ones(1, 1), torch.ones(1))],
        metrics={"score": lambda outputs, targets: next(results)},
        epochs=epochs,
        hooks=hooks,
        default_hooks=False,
        work_dir=None,
        device="cpu",
    ).fit()


class Interrupt(callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Interrupt the training after an iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self._iteration = iteration

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == self._iteration:
            raise KeyboardInterrupt


def describe(model: Any, history: Any) -> tuple[list[int], int, float]:
    """Return the epochs of the last call of `fit`, the number of steps, and the weight."""
    return history.epoch, int(model.optimizer.iterations), get_weight(model)


class RecordRates(Hook):
    """Record the learning rate of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def before_train_iter(self, run: Any) -> None:
        self.rates.append(run.optimizer.param_groups[0]["lr"])


def record_rates(model: Any, rates: list[float]) -> callbacks.Callback:
    """Return a callback that records the learning rate of each epoch."""
    return callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: batch == 0 and rates.append(float(model.optimizer.learning_rate))
    )


@covers("`ModelCheckpoint`", "`checkpoint`")
def test_both_save_the_same_weights(tmp_path: Path) -> None:
    model = build_line()
    attach([CheckpointHook(save_best="val_loss")], model, checkpoints="hookbus", work_dir=tmp_path)
    every_epoch = callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    best = callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True, save_best_only=True)
    fit(model, 5, callbacks=[every_epoch, best])

    def load(name: str) -> float:
        restored = build_line()
        restored.load_weights(tmp_path / f"{name}.weights.h5")
        return get_weight(restored)

    def read(name: str) -> float:
        weights = read_checkpoint(tmp_path / "checkpoints" / f"{name}.pth")["state_dict"]
        return float(weights[WEIGHT])

    epochs = range(1, 6)
    assert [load(str(epoch)) for epoch in epochs] == [read(f"epoch_{epoch}") for epoch in epochs] == [1, 2, 3, 4, 5]
    assert load("best") == read("best_val_loss") == 3


@covers("`filepath` of `ModelCheckpoint`", '`checkpoint` with `filename_tmpl: "{epoch:02d}-{val_loss:.2f}"`')
def test_files_have_the_same_names(tmp_path: Path) -> None:
    model, name = build_line(), "{epoch:02d}-{val_loss:.2f}"
    hook = CheckpointHook(filename_tmpl=name, save_best=False, save_last=False)
    attach([hook], model, checkpoints="hookbus", work_dir=tmp_path / "hookbus")
    saving = callbacks.ModelCheckpoint(tmp_path / f"{name}.weights.h5", save_weights_only=True)
    fit(model, 3, callbacks=[saving])

    native = sorted(path.name.removesuffix(".weights.h5") for path in tmp_path.glob("*.weights.h5"))
    assert len(native) == 3
    assert sorted(path.stem for path in (tmp_path / "hookbus/checkpoints").glob("*.pth")) == native


@covers('`monitor="loss"` of `EarlyStopping`', "`early_stopping` with `monitor: train/loss`")
def test_both_stop_on_the_training_loss() -> None:
    native = build_line()
    stopping = callbacks.EarlyStopping(monitor="loss", patience=2, min_delta=1000)
    history = fit(native, 6, callbacks=[stopping])

    model, hook = build_line(), EarlyStoppingHook(monitor="train/loss", patience=2, min_delta=1000)
    bridge = attach([hook], model)
    fit(model, 6)
    assert len(history.epoch) == bridge.active_run.epochs_done == 3
    assert hook.best_score == pytest.approx(stopping.best)


@covers("`BackupAndRestore`", "`checkpoint`, with `resume: auto`")
def test_both_continue_after_an_interruption(tmp_path: Path) -> None:
    def build() -> Any:
        return build_line(keras.optimizers.SGD(0.25, momentum=0.5))

    def fit_natively(**options: Any) -> Any:
        backup = callbacks.BackupAndRestore(str(tmp_path / "native"), delete_checkpoint=False)
        return describe(model := build(), fit(model, 5, callbacks=[backup, *options.get("callbacks", [])]))

    def fit_with_hook(**options: Any) -> Any:
        hooks = [CheckpointHook(save_best=False)]
        attach(hooks, model := build(), checkpoints="hookbus", work_dir=tmp_path / "hookbus", resume="auto")
        return describe(model, fit(model, 5, **options))

    for train in (fit_natively, fit_with_hook):
        with pytest.raises(KeyboardInterrupt):
            train(callbacks=[Interrupt(iteration=10)])
    _, *whole = describe(model := build(), fit(model, 5))
    assert fit_natively() == fit_with_hook() == ([2, 3, 4], *whole)
    assert whole[0] == 20


@covers("`EarlyStopping`", "`early_stopping`")
def test_both_stop_in_the_same_epoch_with_the_best_weights() -> None:
    native = build_line()
    stopping = callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    history = fit(native, 6, callbacks=[stopping])

    model, hook = build_line(), EarlyStoppingHook(monitor="val_loss", patience=2)
    bridge = attach([hook], model)
    fit(model, 6)
    assert history.history["val_loss"] == VAL_LOSSES[:5]
    assert len(history.epoch) == bridge.active_run.epochs_done == 5
    assert (stopping.best_epoch + 1, stopping.best) == (hook.best_epoch, hook.best_score) == (3, 0)
    assert get_weight(native) == get_weight(model) == 3


@covers("`SwapEMAWeights` with `ema_momentum`", "`ema` with `momentum`, `warm_up: 0` and `start_step: 1`")
@pytest.mark.parametrize("first_rate", [0.0, 0.25])
def test_averages_start_with_the_same_weights(first_rate: float) -> None:
    def build(**options: Any) -> Any:
        rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [first_rate, 0.25])
        return build_line(keras.optimizers.SGD(rate, **options))

    native = build(use_ema=True, ema_momentum=0.5)
    expected = fit(native, 2, callbacks=[callbacks.SwapEMAWeights()]).history["val_loss"]

    model = build()
    bridge = attach([EMAHook(momentum=0.5, warm_up=0, start_step=1)], model)
    losses = fit(model, 2).history["val_loss"]
    average = bridge.active_run.weights.averaged()[WEIGHT]
    assert get_weight(native) == float(average)
    assert losses == expected
    assert get_weight(model) == first_rate + 7 * 0.25  # Keras ends with the averages instead


@covers("`validation_freq`", "`eval`, which also validates at the end unless `at_end: false`")
@pytest.mark.parametrize(("at_end", "expected"), [(False, [2, 4]), (True, [2, 4, 5])])
def test_both_validate_after_the_same_epochs(at_end: bool, expected: list[int]) -> None:
    native_epochs: list[int] = []
    native = build_line()
    record = callbacks.LambdaCallback(
        on_test_end=lambda logs: native_epochs.append(int(native.optimizer.iterations) // BATCHES)
    )
    fit(native, 5, validation_freq=2, callbacks=[record])

    class Record(Hook):
        def after_val(self, run: Any) -> None:
            epochs.append(run.epochs_done)

    epochs: list[int] = []
    train(EvalHook(interval=2, at_end=at_end, save_best=False), Record(), epochs=5)
    assert (native_epochs, epochs) == ([2, 4], expected)


@covers(
    "`ReduceLROnPlateau`",
    "`param_scheduler` with `type: ReduceLROnPlateau`, whose `patience: 1` is `patience=2` of Keras",
)
def test_both_reduce_the_rate_in_the_same_epochs() -> None:
    losses = [4.0, 3.0, 3.0, 3.5, 2.0, 2.0, 2.0, 2.0, 2.0]
    rates: list[float] = []
    native = build_line(keras.optimizers.SGD(1.0))
    script = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_loss=losses[epoch]))
    plateau = callbacks.ReduceLROnPlateau(factor=0.5, patience=2, min_delta=0.0)
    fit(native, 9, validate=False, callbacks=[script, plateau, record_rates(native, rates)])

    recorder = RecordRates()
    scheduler = {"type": "ReduceLROnPlateau", "factor": 0.5, "patience": 1, "threshold": 0.0, "monitor": "score"}
    train(ParamSchedulerHook(schedulers=scheduler), recorder, epochs=9, scores=losses)
    assert rates == recorder.rates == [1.0] * 4 + [0.5] * 3 + [0.25] * 2


@covers("`LearningRateScheduler`", "`param_scheduler` with `type: LambdaLR`, whose function returns a factor")
def test_both_schedule_the_same_rates() -> None:
    rates: list[float] = []
    native = build_line(keras.optimizers.SGD(1.0))
    scheduler = callbacks.LearningRateScheduler(lambda epoch, rate: 0.5**epoch)
    fit(native, 4, callbacks=[scheduler, record_rates(native, rates)])

    recorder = RecordRates()
    scheduled = {"type": "LambdaLR", "lr_lambda": lambda epoch: 0.5**epoch}
    train(ParamSchedulerHook(schedulers=scheduled), recorder, epochs=4)
    assert rates == recorder.rates == [1.0, 0.5, 0.25, 0.125]


@covers(
    "`TerminateOnNaN`",
    "`check_invalid_loss` with `interval: 1` and `policy: stop`, without a validation of the invalid weights",
)
def test_both_terminate_in_the_same_iteration() -> None:
    inputs = np.ones((BATCHES, 1), dtype="float32")
    inputs[2] = np.nan
    native = build_line()
    fit(native, inputs=inputs, callbacks=[callbacks.TerminateOnNaN()])

    model = build_line()
    bridge = attach([CheckInvalidLossHook(interval=1, policy="stop")], model)
    history = fit(model, inputs=inputs).history
    assert int(native.optimizer.iterations) == bridge.active_run.iters_done == 3
    assert (bridge.active_run.outcome, "val_loss" in history, "val_loss" in native.history.history) == (
        "aborted",
        False,
        True,
    )
