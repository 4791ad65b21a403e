"""Tests of `bus.emit`: argument checks and defaults."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import HookBus
from hookbus._events.points import Point
from hookbus.errors import PointError
from hookbus.lifecycle import POINTS
from hookbus.testing import RecordingBus

ARGUMENTS = [(point, name) for point in POINTS.values() for name in point.args]


@pytest.mark.parametrize("has_listeners", [True, False])
@pytest.mark.parametrize(
    ("point", "unknown", "message"),
    [
        ("after_train_iter", "losss", "after_train_iter: unknown argument 'losss'. Did you mean 'loss'? Signature: "),
        ("before_epoch", "loss", "before_epoch: unknown argument 'loss'. Available: epoch, model. Signature: "),
        ("before_train_iter", "outputs", "before_train_iter: unknown argument 'outputs'."),
        ("cleanup", "batch", "cleanup: unknown argument 'batch'. Signature: cleanup(run)."),
        ("log_scalars", "value", "log_scalars: unknown argument 'value'. Did you mean 'values'?"),
        ("before_epoch", "data_batch", "before_epoch: unknown argument 'batch'."),
    ],
)
def test_unknown_argument_raises(has_listeners: bool, point: str, unknown: str, message: str) -> None:
    bus: Any = RecordingBus() if has_listeners else HookBus()
    with pytest.raises(PointError) as caught:
        bus.emit(point, **{unknown: 1})
    assert message in str(caught.value)


@pytest.mark.parametrize(("point", "name"), ARGUMENTS, ids=[f"{point.name}-{name}" for point, name in ARGUMENTS])
def test_every_argument_of_every_point_reaches_the_listeners(point: Point, name: str) -> None:
    value: Any = {"metrics": {"accuracy": 0.5}, "loss": 0.25}.get(name, f"the {name}")
    bus: Any = RecordingBus()
    bus.emit(point.name, **{name: value})
    (arguments,) = bus.get_arguments(point.name)
    if point.name in ("after_val_epoch", "after_test_epoch") and name == "metrics":
        value = {f"{point.name[6:].partition('_')[0]}/accuracy": 0.5}
    assert arguments[name] == value


def test_argument_aliases_and_the_run_are_accepted() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_train_iter", data_batch=[1], run=bus.current, outputs={"loss": 0.25})
    bus.emit("after_train_iter", runner=bus.current, data_batch=[2], batch_idx=9)
    first, second = bus.get_arguments("after_train_iter")
    assert (first["batch"], first["loss"]) == ([1], 0.25)
    assert (second["batch"], second["batch_idx"]) == ([2], 9)


def test_alias_emits_its_point() -> None:
    bus: Any = RecordingBus()
    for alias in ("before_training", "before_step", "after_step", "after_training"):
        bus.emit(alias)
    assert bus.emitted_points == ["before_train", "before_train_iter", "after_train_iter", "after_train"]


def test_omitted_arguments_without_default_are_none() -> None:
    bus: Any = RecordingBus()
    bus.emit("after_train_iter")
    bus.emit("log_images", tag="x")
    assert bus.get_arguments("after_train_iter") == [
        {"step": 1, "batch_idx": 0, "batch": None, "model": None, "outputs": None, "loss": None}
    ]
    assert bus.get_arguments("log_images") == [{"tag": "x", "images": None, "step": 1, "caption": None}]


def test_undeclared_point_raises_and_suggests_a_name() -> None:
    bus: Any = HookBus()
    with pytest.raises(PointError, match="Unknown point 'after_epohc'. Did you mean 'after_epoch'"):
        bus.emit("after_epohc")
    with pytest.raises(PointError, match="Unknown point 'epoch_edn'. Available: .*after_epoch, .* Declare custom"):
        bus.emit("epoch_edn")


def test_declared_point_may_have_arguments_of_any_name() -> None:
    bus: Any = HookBus()
    seen: list[Any] = []
    fire = bus.declare("after_render", args=("point", "rest", "call", "known", "loss"))
    bus.on("after_render")(lambda point, rest, call, known, loss: seen.append((point, rest, call, known, loss)))
    fire(point=1, rest=2, call=3, known=4, loss=5)
    bus.emit("after_render", rest=2)
    assert seen == [(1, 2, 3, 4, 5), (None, 2, None, None, None)]
    with pytest.raises(PointError, match="after_render: unknown argument 'batch'"):
        fire(batch=1)


@pytest.mark.parametrize("point", ["before_run", "before_train", "before_epoch"])
@pytest.mark.parametrize("unknown", ["bacth", "loss"])
def test_unknown_arguments_raise_if_the_point_was_emitted_automatically(point: str, unknown: str) -> None:
    bus: Any = RecordingBus()
    with bus.run(epochs=1):
        bus.emit("before_train_epoch")
        fired = list(bus.emitted_points)
        with pytest.raises(PointError, match=f"{point}: unknown argument '{unknown}'"):
            bus.emit(point, **{unknown: 1.0})
        assert bus.emitted_points == fired
