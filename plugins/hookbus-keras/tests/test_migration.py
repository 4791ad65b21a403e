"""Rows of docs/coming-from.md: callbacks of Keras and the points, requests and arguments that replace them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("keras", reason="Keras is not installed: run `make bridges HOST=keras`")

import keras
from keras import callbacks

from hookbus import Hook, HookBus

from . import test_migration_metrics, test_migration_predictions, test_migration_training  # noqa: F401  # they add rows
from .migration import TRAIN_LOSSES, VAL_DATA, VAL_LOSSES, attach, build_line, covers, fit, get_weight

Calls = list[tuple[int, int]]

# Two epochs of four batches and two batches of validation, with a step every second batch. Of each row, the steps done
# at each call, as (position in the row, steps).
POINT_ROWS = {
    ("`on_train_begin`, `on_train_end`", "`before_train`, `after_train`"): [(0, 0), (1, 4)],
    ("`on_epoch_begin`, `on_epoch_end`", "`before_epoch`, `after_epoch`"): [(0, 0), (1, 2), (0, 2), (1, 4)],
    ("`on_train_batch_begin`, `on_train_batch_end`", "`before_train_iter`, `after_train_iter`"): [
        *[(0, 0), (1, 0), (0, 0), (1, 1), (0, 1), (1, 1), (0, 1), (1, 2)],
        *[(0, 2), (1, 2), (0, 2), (1, 3), (0, 3), (1, 3), (0, 3), (1, 4)],
    ],
    ("`on_test_begin`, `on_test_end` during `fit`", "`before_val`, `after_val`"): [(0, 2), (1, 2), (0, 4), (1, 4)],
    ("`on_test_batch_begin`, `on_test_batch_end` during `fit`", "`before_val_iter`, `after_val_iter`"): [
        *[(0, 2), (1, 2), (0, 2), (1, 2)],
        *[(0, 4), (1, 4), (0, 4), (1, 4)],
    ],
    ("`on_test_…` in `evaluate`", "`before_test…`, `after_test…`"): [
        *[(0, 4), (2, 4), (3, 4), (2, 4), (3, 4), (1, 4)],
    ],
}
ABBREVIATIONS = {
    "`on_test_…` in `evaluate`": ["on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"],
    "`before_test…`, `after_test…`": ["before_test", "after_test", "before_test_iter", "after_test_iter"],
}


def expand(cell: str) -> list[str]:
    """Return the methods or points that a cell names."""
    return ABBREVIATIONS.get(cell) or re.findall(r"`((?:on|before|after)_\w+)`", cell)


def build_callback(methods: dict[str, Callable[[], object]]) -> callbacks.Callback:
    """Return a callback with methods that ignore their arguments."""
    callback = callbacks.Callback()
    for name, method in methods.items():
        setattr(callback, name, lambda *_, method=method, **__: method())
    return callback


def build_recorder(row: str, model: Any) -> tuple[callbacks.Callback, Calls]:
    """Return a callback that records the calls of the methods of a cell, and its record."""
    calls: Calls = []

    def build_method(position: int) -> Callable[[], object]:
        return lambda: calls.append((position, int(model.optimizer.iterations)))

    return build_callback({name: build_method(position) for position, name in enumerate(expand(row))}), calls


def build_bus(row: str) -> tuple[HookBus, Calls]:
    """Return a bus that records the emissions of the points of a cell, and its record."""
    bus, calls = HookBus(), []
    on: Any = bus.on  # whose overloads require literal names

    def build_listener(position: int) -> Callable[[Any], object]:
        return lambda run: calls.append((position, run.steps_done))

    for position, name in enumerate(expand(row)):
        on(name, name=name)(build_listener(position))
    return bus, calls


def test_every_row_has_a_test() -> None:
    covers.check("Keras")


@covers.for_rows(POINT_ROWS)
@pytest.mark.parametrize(("row", "expected"), POINT_ROWS.items(), ids=[row[0] for row in POINT_ROWS])
def test_points_are_emitted_when_the_callback_is_called(row: tuple[str, str], expected: Calls) -> None:
    model = build_line(keras.optimizers.SGD(0.25, gradient_accumulation_steps=2))
    recorder, called = build_recorder(row[0], model)
    bus, emitted = build_bus(row[1])
    attach(bus, model)
    in_evaluate = "`evaluate`" in row[0]
    fit(model, callbacks=[] if in_evaluate else [recorder])
    if in_evaluate:
        model.evaluate(*VAL_DATA, batch_size=1, verbose=0, callbacks=[recorder])
    assert called == expected
    assert emitted == expected


@covers("`self.model`", "the argument `model`")
def test_model_is_that_of_the_callback() -> None:
    native, received, callback = build_line(), [], callbacks.Callback()

    class Record(Hook):
        def after_epoch(self, model: Any) -> None:
            received.append((model, callback.model))

    attach([Record()], native)
    fit(native, 1, callbacks=[callback])
    assert received == [(native, native)]


@covers("`self.model.stop_training = True`", '`run.request_stop("reason")`')
@pytest.mark.parametrize(
    ("method", "point", "iteration", "expected"),
    [
        ("on_train_batch_end", "after_train_iter", 6, (6, 2, 1.5)),  # the second epoch is truncated
        ("on_epoch_end", "after_epoch", 8, (8, 2, 2.0)),
    ],
)
def test_both_stop_the_training(method: str, point: Any, iteration: int, expected: tuple[int, int, float]) -> None:
    native = build_line()

    def stop() -> None:
        if int(native.optimizer.iterations) == iteration:
            native.stop_training = True

    history = fit(native, 5, callbacks=[build_callback({method: stop})])
    assert (int(native.optimizer.iterations), len(history.epoch), get_weight(native)) == expected

    model, bus, validated = build_line(), HookBus(), []
    bus.on(point)(lambda run: run.iters_done == iteration and run.request_stop("enough"))
    bus.on("after_val", name="record")(lambda run: validated.append(run.iters_done))
    bridge = attach(bus, model)
    history = fit(model, 5)
    assert (bridge.active_run.iters_done, len(history.epoch), get_weight(model)) == expected
    assert validated == [4, iteration]


@covers(
    "`logs`", "the argument `metrics`: `val/…`, and `train/…` with what the training step returns, in `fit` the loss"
)
def test_results_are_those_in_the_logs() -> None:
    model, logged, received = build_line(metrics=["mae"]), [], []

    class Record(Hook):
        def after_epoch(self, metrics: Any) -> None:
            received.append({name: float(value) for name, value in metrics.items()})

    attach([Record()], model)
    fit(model, callbacks=[callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logged.append(dict(logs)))])
    # The target of the training is 0, and that of the validation 3.
    assert logged == [
        {"loss": TRAIN_LOSSES[0], "mae": 0.375, "val_loss": VAL_LOSSES[0], "val_mae": 2.0},
        {"loss": TRAIN_LOSSES[1], "mae": 1.375, "val_loss": VAL_LOSSES[1], "val_mae": 1.0},
    ]
    names = {"loss": "train/loss", "val_loss": "val/loss", "val_mae": "val/mae"}
    assert received == [{names[key]: value for key, value in entry.items() if key in names} for entry in logged]
