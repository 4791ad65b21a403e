"""Tests of the list of points of training."""

from __future__ import annotations

from typing import Any

import pytest

from hookbus import HookBus
from hookbus._events.points import ARGUMENT_ALIASES, POINT_ALIASES, Point
from hookbus.lifecycle import POINTS

ITER = ("step", "batch_idx", "batch", "model")
STEP = ("step", "batch_idx", "batch", "outputs", "loss")
EPOCH = ("epoch", "model")
LOADER = "dataloader_name"
FROM_RUN = {"step", "batch_idx", "epoch", "mode", "config", "metrics"}
"""Arguments that default to the value of the run; all others default to None."""

EXPECTED = {
    "before_run": ("mode",),
    "after_load_checkpoint": ("checkpoint", "path"),
    "before_train": ("model",),
    "before_epoch": EPOCH,
    "before_train_epoch": EPOCH,
    "before_train_iter": ITER,
    "after_forward": STEP,
    "after_backward": STEP,
    "before_optimizer_step": ("step", "optimizer"),
    "after_optimizer_step": ("step", "optimizer"),
    "after_train_iter": (*ITER, "outputs", "loss"),
    "after_train_epoch": (*EPOCH, "metrics"),
    "before_val": ("model",),
    "before_val_epoch": (*EPOCH, LOADER),
    "before_val_iter": (*ITER, LOADER),
    "after_val_iter": (*ITER, "outputs", "loss", LOADER),
    "after_val_epoch": (*EPOCH, "metrics", LOADER),
    "after_val": ("model", "metrics"),
    "after_epoch": (*EPOCH, "metrics"),
    "after_train": ("model", "metrics"),
    "before_test": ("model",),
    "before_test_epoch": (*EPOCH, LOADER),
    "before_test_iter": (*ITER, LOADER),
    "after_test_iter": (*ITER, "outputs", "loss", LOADER),
    "after_test_epoch": (*EPOCH, "metrics", LOADER),
    "after_test": ("model", "metrics"),
    "before_predict": ("model",),
    "before_predict_epoch": (*EPOCH, LOADER),
    "before_predict_iter": (*ITER, LOADER),
    "after_predict_iter": (*ITER, "outputs", "indices", LOADER),
    "after_predict_epoch": (*EPOCH, "metrics", LOADER),
    "after_predict": ("model", "metrics"),
    "before_save_checkpoint": ("checkpoint",),
    "after_save_checkpoint": ("path", "is_best", "metrics"),
    "log_scalars": ("values", "step"),
    "log_images": ("tag", "images", "step", "caption"),
    "log_histograms": ("tag", "values", "step"),
    "log_figure": ("tag", "figure", "step"),
    "log_text": ("tag", "text", "step"),
    "log_config": ("config",),
    "log_artifact": ("path", "name"),
    "on_exception": ("exception",),
    "after_run": ("mode",),
    "cleanup": (),
}

UNITS = {
    "iter": {"before_train_iter", "after_forward", "after_backward", "after_train_iter"},
    "batch": {f"{side}_{name}_iter" for side in ("before", "after") for name in ("val", "test", "predict")},
    "step": {"before_optimizer_step", "after_optimizer_step"},
    "epoch": {
        f"{side}_{name}"
        for side in ("before", "after")
        for name in ("epoch", "train_epoch", "val_epoch", "test_epoch", "predict_epoch")
    },
}


def test_points_are_listed_in_the_order_of_a_run() -> None:
    assert {name: point.args for name, point in POINTS.items()} == EXPECTED
    assert list(POINTS) == list(EXPECTED)


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_every_point_has_a_description(point: Point) -> None:
    assert point.doc.endswith(".")
    assert len(point.types) == len(point.args)
    assert "" not in point.types


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_every_argument_of_a_point_may_be_omitted(point: Point) -> None:
    bus: Any = HookBus()
    received: dict[str, Any] = {}
    bus.on(point.name)(lambda **arguments: received.update(arguments))
    bus.emit(point.name)
    omitted = set(point.args) - FROM_RUN
    assert {name: received[name] for name in omitted} == dict.fromkeys(omitted)


def test_points_have_the_expected_unit() -> None:
    counted = {name: unit for unit, names in UNITS.items() for name in names}
    assert {name: point.unit for name, point in POINTS.items()} == {name: counted.get(name) for name in POINTS}


def test_only_after_points_and_cleanup_are_reversed() -> None:
    assert {name for name, point in POINTS.items() if point.reverse} == {
        name for name in POINTS if name.startswith("after_")
    } | {"cleanup"}


def test_signature_is_valid_for_a_listener() -> None:
    assert POINTS["after_epoch"].signature == "after_epoch(run, epoch, model, metrics)"
    assert POINTS["cleanup"].signature == "cleanup(run)"


def test_aliases_refer_to_existing_points_and_arguments() -> None:
    assert dict(POINT_ALIASES) == {
        "before_training": "before_train",
        "after_training": "after_train",
        "before_step": "before_train_iter",
        "after_step": "after_train_iter",
    }
    assert dict(ARGUMENT_ALIASES) == {
        "runner": "run",
        "trainer": "run",
        "trainner": "run",
        "data_batch": "batch",
    }
