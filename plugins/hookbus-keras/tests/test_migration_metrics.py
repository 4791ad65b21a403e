"""Rows of docs/coming-from.md: built-in callbacks of Keras that log results."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

from keras import callbacks
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookbus import HookBus
from hookbus_logger import CsvHook, ProgressHook
from hookbus_tensorboard import TensorBoardHook

from .migration import TRAIN_LOSSES, VAL_LOSSES, attach, build_line, covers, fit


class SummaryStub:
    """The functions of `tensorflow.summary` that the callback calls, which record the scalars of each writer."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[str, int, float]]] = {}
        self._current: list[tuple[str, int, float]] = []  # ignored, as without a default writer

    def create_file_writer(self, directory: str) -> Any:
        entries = self.scalars.setdefault(Path(directory).name, [])

        @contextmanager
        def as_default() -> Iterator[None]:
            self._current = entries
            yield
            self._current = []

        return SimpleNamespace(as_default=as_default, close=lambda: None)

    def scalar(self, name: str, value: Any, step: Any) -> None:
        self._current.append((name, int(step), float(value)))


class TensorBoard(callbacks.TensorBoard):  # type: ignore[misc]  # Keras has no types
    """The callback, which requires TensorFlow for its files only."""

    summary = SummaryStub()


@covers("`History`", '`run.history`, whose epochs are counted from 1: `history["train/loss"]`, `history["val/loss"]`')
def test_both_histories_contain_the_same_results() -> None:
    model = build_line()
    run = attach([], model)
    native = fit(model)
    history = run.active_run.history
    assert native.history == {"loss": TRAIN_LOSSES, "val_loss": VAL_LOSSES[:2]}
    assert (history["train/loss"], history["val/loss"]) == (TRAIN_LOSSES, VAL_LOSSES[:2])
    assert (native.epoch, history["epoch"]) == ([0, 1], [1, 2])


@covers(
    "`CSVLogger`", "`csv` with `logging_interval: epoch`, whose epochs are counted from 1; also `separator`, `append`"
)
@pytest.mark.parametrize(("separator", "append"), [(",", False), (";", True)])
def test_both_files_contain_the_same_results(tmp_path: Path, separator: str, append: bool) -> None:
    def read(name: str, *columns: str) -> list[list[float]]:
        with open(tmp_path / name) as file:
            return [[float(row[column]) for column in columns] for row in csv.DictReader(file, delimiter=separator)]

    for number in range(1 + append):
        model = build_line()
        hook = CsvHook(path=tmp_path / "hook.csv", logging_interval="epoch", separator=separator, append=append)
        attach([hook], model, work_dir=tmp_path / str(number))
        logger = callbacks.CSVLogger(tmp_path / "log.csv", separator=separator, append=append)
        fit(model, callbacks=[logger])
    expected = [[epoch, *losses] for epoch, losses in enumerate(zip(TRAIN_LOSSES, VAL_LOSSES[:2], strict=True))]
    assert read("log.csv", "epoch", "loss", "val_loss") == expected * (1 + append)
    own = read("hook.csv", "epoch", "train/loss", "val/loss")
    assert [[epoch - 1, *losses] for epoch, *losses in own] == expected * (1 + append)


@covers(
    "`TensorBoard`", "`tensorboard`, with means over `interval: 50` iterations, at numbers of steps instead of epochs"
)
def test_both_write_the_same_scalars(tmp_path: Path) -> None:
    model = build_line()
    attach([TensorBoardHook(log_dir=tmp_path / "hook", interval=4)], model, work_dir=tmp_path)
    fit(model, callbacks=[TensorBoard(tmp_path, write_graph=False)])
    events = EventAccumulator(str(tmp_path / "hook")).Reload()
    hook = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}

    def get_native(part: str, name: str) -> list[tuple[int, float]]:
        return [(step, value) for tag, step, value in TensorBoard.summary.scalars[part] if tag == name]

    assert get_native("train", "epoch_loss") == list(enumerate(TRAIN_LOSSES))
    assert hook["train/loss"] == [(4, TRAIN_LOSSES[0]), (8, TRAIN_LOSSES[1])]
    assert get_native("train", "epoch_learning_rate") == [(0, 0.25), (1, 0.25)]
    assert hook["lr"] == [(4, 0.25), (8, 0.25)]
    assert get_native("validation", "evaluation_loss_vs_iterations") == hook["val/loss"] == [(4, 4.0), (8, 1.0)]


@covers("`ProgbarLogger`", "`progress`")
def test_both_display_the_epoch_and_its_last_batch(capsys: pytest.CaptureFixture[str]) -> None:
    model, bus, progress, displayed = build_line(), HookBus(), ProgressHook(interval=4), []
    bus.register(progress)
    bus.on("after_epoch")(lambda run: displayed.append(progress.get_progress(run)))
    attach(bus, model)
    fit(model, verbose=1)
    output = capsys.readouterr().out
    assert re.findall(r"Epoch (\d/\d)", output) == ["1/2", "2/2"]
    # Of the loss, some versions of Keras display the mean of the running means, which is not that of the epoch.
    assert re.findall(r"(4/4)[^\r]* loss: [^\r]*val_loss: ([\d.]+)", output) == [("4/4", "4.0000"), ("4/4", "1.0000")]
    assert [(state.label, state.position, state.loss) for state in displayed] == [
        ("epoch 1/2", "4/4", TRAIN_LOSSES[0]),
        ("epoch 2/2", "4/4", TRAIN_LOSSES[1]),
    ]


@covers("`LambdaCallback`", '`@bus.on("after_train_iter")`')
def test_both_call_the_function_in_each_iteration() -> None:
    model, bus, called, emitted = build_line(), HookBus(), [], []
    bus.on("after_train_iter")(lambda batch_idx: emitted.append(batch_idx))
    attach(bus, model)
    fit(model, callbacks=[callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: called.append(batch))])
    assert called == emitted == [0, 1, 2, 3, 0, 1, 2, 3]
