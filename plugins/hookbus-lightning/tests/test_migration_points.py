"""Rows of the migration page for methods of callbacks: each is called between the same steps as a point."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from lightning.pytorch.callbacks import Callback
from torch import nn

from hookbus import Hook, HookBus, Trainer, hookimpl
from hookbus.testing import RecordingBus
from tests.migration_page import read_rows

from .migration import covers
from .toys import Mean, Validated, attach, make_loader

# Steps done at each call in 2 epochs of 4 batches, with 2 batches per step and 2 batches of validation.
ONCE, VALIDATED = [0], [2, 4]
BACKWARD = [0, 0, 1, 1, 2, 2, 3, 3]
EXPECTED = {
    "setup": ONCE,
    "on_fit_start": ONCE,
    "on_train_start": ONCE,
    "on_train_end": [4],
    "on_train_epoch_start": [0, 2],
    "on_train_epoch_end": [2, 4],
    "on_train_batch_start": BACKWARD,
    "on_train_batch_end": [0, 1, 1, 2, 2, 3, 3, 4],
    "on_before_backward": BACKWARD,
    "on_after_backward": BACKWARD,
    "on_before_optimizer_step": [0, 1, 2, 3],
    "on_validation_start": VALIDATED,
    "on_validation_end": VALIDATED,
    "on_validation_epoch_start": VALIDATED,
    "on_validation_epoch_end": VALIDATED,
    "on_validation_batch_start": [2, 2, 4, 4],
    "on_validation_batch_end": [2, 2, 4, 4],
    "on_fit_end": [4],
    "teardown": [4],
}
ROWS = dict(read_rows("Lightning"))


def read_pairs() -> dict[str, str]:
    """Return the point that the page names for each method of `EXPECTED`; a row has one point, or one per method."""
    pairs = {}
    for left, right in ROWS.items():
        methods, points = (re.findall(r"`(\w+)`", cell.partition(";")[0]) for cell in (left, right))
        points = points if len(points) == len(methods) else points * len(methods)
        pairs.update({method: point for method, point in zip(methods, points, strict=False) if method in EXPECTED})
    return pairs


PAIRS = read_pairs()


class Calls(Callback):
    """Callback and listeners that record the value of `trainer.global_step` at each call, by method and by point."""

    def __init__(self, bus: HookBus, methods: Iterable[str], points: Iterable[str]) -> None:
        self.steps: dict[str, list[int]] = defaultdict(list)
        self.order: list[str] = []
        self.trainer: Any = None
        for method in methods:
            setattr(self, method, lambda *_, name=method, **__: self.record(name))
        if listeners := {point: self.make_listener(point) for point in points}:
            bus.register(SimpleNamespace(**listeners), "calls")

    def make_listener(self, point: str) -> Any:
        return hookimpl(lambda: self.record(point))

    def record(self, name: str) -> None:
        self.steps[name].append(self.trainer.global_step)
        self.order.append(name)


def train(calls: Calls, bus: HookBus, directory: Path, **options: Any) -> Any:
    """Train the toy of `EXPECTED`, and return the bridge."""
    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "callbacks": [calls], **options}
    bridge = attach(bus, directory, **options)
    calls.trainer = bridge.host
    bridge.host.fit(Validated(), make_loader(1.0, 2.0, 3.0, 4.0), make_loader(1.0, 2.0))
    return bridge


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    bus = HookBus()
    calls = Calls(bus, EXPECTED, set(PAIRS.values()))
    train(calls, bus, tmp_path_factory.mktemp("points"))
    return calls.steps


@covers("`setup`, `on_fit_start`", "`before_run`")
@covers("`on_train_start`, `on_train_end`", "`before_train`, `after_train`")
@covers("`on_train_epoch_start`, `on_train_epoch_end`", "`before_epoch`, `after_epoch`")
@covers("`on_train_batch_start`, `on_train_batch_end`", "`before_train_iter`, `after_train_iter`")
@covers("`on_before_backward`, `on_after_backward`", "`after_forward`, `after_backward`")
@covers("`on_before_optimizer_step`", "`before_optimizer_step`; in addition `after_optimizer_step`")
@covers("`on_validation_start`, `on_validation_end`", "`before_val`, `after_val`")
@covers("`on_validation_batch_start`, `on_validation_batch_end`", "`before_val_iter`, `after_val_iter`")
@pytest.mark.parametrize("method", EXPECTED)
def test_method_and_point_are_called_between_the_same_steps(steps: dict[str, list[int]], method: str) -> None:
    assert steps[method] == EXPECTED[method]
    assert steps[PAIRS[method]] == EXPECTED[method]


@covers("`on_sanity_check_start`, `on_sanity_check_end`", "`before_val`, `after_val` if `run.sanity_checking`")
def test_sanity_check_is_a_validation(tmp_path: Path) -> None:
    bus = HookBus()
    methods = ("on_sanity_check_start", "on_sanity_check_end")
    calls = Calls(bus, methods, ())

    @bus.on("before_val")
    def begin(run: Any) -> None:
        if run.sanity_checking:
            calls.record("before_val")

    @bus.on("after_val")
    def end(run: Any) -> None:
        if run.sanity_checking:
            calls.record("after_val")

    train(calls, bus, tmp_path, num_sanity_val_steps=1)
    assert calls.order == ["on_sanity_check_start", "before_val", "after_val", "on_sanity_check_end"]


@covers(
    "`on_before_zero_grad`", "`after_optimizer_step`, with the same gradients; Lightning calls it in the next iteration"
)
def test_gradients_of_a_step_are_present_after_it_and_before_they_are_set_to_zero(tmp_path: Path) -> None:
    native: list[Any] = []
    ours: list[Any] = []

    class Read(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            native.append(pl_module.weight.grad.item() if pl_module.weight.grad is not None else None)

    bus = HookBus()
    bus.on("after_optimizer_step")(lambda run: ours.append(run.model.weight.grad.item()))
    calls = Calls(bus, (), ())
    train(calls, bus, tmp_path, callbacks=[Read()])
    assert native == [None, 1.5, None, 1.5]  # a validation has set those of the epoch before to zero
    assert ours == [1.5, 3.5, 1.5, 3.5]


@covers(
    "`on_validation_epoch_start`, `on_validation_epoch_end`", "`before_val_epoch`, `after_val_epoch`; once per loader"
)
def test_epoch_of_a_validation_is_one_for_each_loader(tmp_path: Path) -> None:
    bus = HookBus()
    calls = Calls(bus, ["on_validation_epoch_start"], ["before_val_epoch"])
    bridge = attach(bus, tmp_path, callbacks=[calls])
    calls.trainer = bridge.host
    bridge.host.fit(Validated(), make_loader(1.0), [make_loader(1.0), make_loader(2.0)])
    assert {name: len(steps) for name, steps in calls.steps.items()} == {
        "on_validation_epoch_start": 1,
        "before_val_epoch": 2,
    }


@covers("`on_test_…`", "`before_test…`, `after_test…`")
def test_points_of_a_test(tmp_path: Path) -> None:
    bus = HookBus()
    parts = {"": 1, "_epoch": 1, "_batch": 2}
    methods = [f"on_test{part}_{side}" for part in parts for side in ("start", "end")]
    points = [f"{side}_test{part.replace('batch', 'iter')}" for part in parts for side in ("before", "after")]
    calls = Calls(bus, methods, points)
    bridge = attach(bus, tmp_path, callbacks=[calls])
    calls.trainer = bridge.host
    bridge.host.test(Validated(), make_loader(1.0, 2.0), verbose=False)
    assert [len(calls.steps[name]) for name in methods] == [1, 1, 1, 1, 2, 2]
    assert [len(calls.steps[name]) for name in points] == [1, 1, 1, 1, 2, 2]


@covers("`on_save_checkpoint`, `on_load_checkpoint`", "`before_save_checkpoint`, `after_load_checkpoint`")
def test_checkpoint_is_saved_and_loaded(tmp_path: Path) -> None:
    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 1 and not path.exists():
                trainer.save_checkpoint(path)

    path = tmp_path / "saved.ckpt"
    names = ["on_save_checkpoint", "before_save_checkpoint", "on_load_checkpoint", "after_load_checkpoint"]
    bus = HookBus()
    calls = Calls(bus, names[::2], names[1::2])
    train(calls, bus, tmp_path, callbacks=[calls, Save()])
    assert calls.order.count("on_save_checkpoint") == calls.order.count("before_save_checkpoint") == 1
    calls.order.clear()
    bridge = attach(bus, tmp_path, max_epochs=3, callbacks=[calls])
    calls.trainer = bridge.host
    bridge.host.fit(Validated(), make_loader(1.0), make_loader(1.0), ckpt_path=str(path))
    assert sorted(calls.order) == ["after_load_checkpoint", "on_load_checkpoint"]


class BrokenError(Exception):
    pass


@covers("`on_exception`", "`on_exception`")
@covers("`on_fit_end`, `teardown`", "`after_run`, `cleanup`, also after an error")
def test_error_is_reported_and_the_run_is_cleaned_up(tmp_path: Path) -> None:
    class Module(Validated):
        def on_train_epoch_end(self) -> None:
            raise BrokenError

    bus = HookBus()
    methods, points = ["on_exception", "on_fit_end", "teardown"], ["on_exception", "after_run", "cleanup"]
    native, ours = Calls(HookBus(), methods, ()), Calls(bus, (), points)
    bridge = attach(bus, tmp_path, callbacks=[native])
    native.trainer = ours.trainer = bridge.host
    with pytest.raises(BrokenError):
        bridge.host.fit(Module(), make_loader(1.0), make_loader(1.0))
    assert native.order == ["on_exception"]
    assert ours.order == points


@covers(
    "`on_predict_…`",
    "`before_predict…`, `after_predict…` in `Trainer.predict`; `trainer.predict` of Lightning emits none",
)
def test_points_of_a_prediction(tmp_path: Path) -> None:
    class Module(Validated):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[0]

    bus, parts = RecordingBus(), ("", "_epoch", "_batch")
    methods = [f"on_predict{part}_{side}" for part in parts for side in ("start", "end")]
    calls = Calls(bus, methods, ())
    bridge = attach(bus, tmp_path, callbacks=[calls])
    calls.trainer = bridge.host
    assert len(bridge.host.predict(Module(), make_loader(1.0, 2.0))) == 2
    assert bus.emitted_points == []

    ours: list[str] = []
    points = [f"{side}_predict{part.replace('batch', 'iter')}" for part in parts for side in ("before", "after")]
    trainer = Trainer(nn.Identity(), default_hooks=False, work_dir=None, device="cpu")

    def build_listener(point: str) -> Any:
        return hookimpl(lambda: ours.append(point))

    trainer.register_hook(SimpleNamespace(**{point: build_listener(point) for point in points}), "ours")
    trainer.predict(make_loader(1.0, 2.0), return_predictions=False)
    assert ours == [dict(zip(methods, points, strict=True))[name] for name in calls.order]


class Count:
    """Number of batches, which a checkpoint contains."""

    batches = 0

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.batches = state["batches"]


class CountCallback(Count, Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1


class CountHook(Count, Hook):
    def after_train_iter(self) -> None:
        self.batches += 1


@covers("`state_dict`, `load_state_dict`", "the same")
def test_state_is_saved_and_restored(tmp_path: Path) -> None:
    def fit(epochs: int, path: str | None = None) -> Any:
        callback, hook = CountCallback(), CountHook()
        bridge = attach(HookBus([hook]), tmp_path, max_epochs=epochs, callbacks=[callback])
        bridge.host.fit(Validated(), make_loader(1.0, 2.0), make_loader(1.0), ckpt_path=path)
        return bridge.host, callback.batches, hook.batches

    trainer, *counts = fit(1)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    _, *resumed = fit(3, str(tmp_path / "saved.ckpt"))
    assert (counts, resumed) == ([2, 2], [6, 6])


# -- requests and counters -------------------------------------------------------------------


@covers('`pl_module.log("x", x)`', "`run.log(x=x)`")
def test_logged_value_is_the_same(tmp_path: Path) -> None:
    class Module(Mean):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.compute_loss(batch)
            self.log("x", 2 * loss)
            return loss

    native = []

    class Read(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            native.append(trainer.callback_metrics["x"].item())

    ours = []
    bus = HookBus()
    bus.on("after_backward")(lambda run, loss: run.log(x=2 * loss))

    @bus.on("after_train_iter")
    def read(run: Any) -> None:
        ours.append(run.metrics["train/x"])

    bridge = attach(bus, tmp_path, callbacks=[Read()])
    bridge.host.fit(Module(), make_loader(1.0, 2.0))
    assert native == ours == [2.0, pytest.approx(3.6)]


@covers("`trainer.should_stop = True`", '`run.request_stop("reason")`')
def test_stop_ends_at_the_same_step(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 3

    def fit(bus: HookBus, *callbacks: Any) -> Any:
        calls = Calls(bus, ["on_validation_end"], ())
        bridge = attach(bus, tmp_path, max_epochs=3, callbacks=[calls, *callbacks])
        calls.trainer = bridge.host
        bridge.host.fit(module := Validated(), make_loader(1.0, 2.0), make_loader(1.0))
        return bridge.host.global_step, calls.steps, module.weight.item()

    bus = HookBus()
    bus.on("after_train_iter")(lambda run: run.request_stop("enough") if run.steps_done == 3 else None)
    native, ours = fit(HookBus(), Stop()), fit(bus)
    # 1 - 0.1 * (1 + 2 + 1): Lightning validates the truncated epoch.
    assert native == ours == (3, {"on_validation_end": [2, 3]}, pytest.approx(0.6))


@covers("`trainer.global_step`, `trainer.current_epoch`", "`run.steps_done`, `run.epoch`")
def test_counters_are_the_same(tmp_path: Path) -> None:
    native, ours = [], []

    class Read(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            native.append((trainer.global_step, trainer.current_epoch))

    bus = HookBus()
    bus.on("after_train_iter")(lambda run: ours.append((run.steps_done, run.epoch)))
    train(Calls(bus, (), ()), bus, tmp_path, callbacks=[Read()])
    assert native == ours == [(0, 0), (1, 0), (1, 0), (2, 0), (2, 1), (3, 1), (3, 1), (4, 1)]


@covers("`trainer.sanity_checking`", "`run.sanity_checking`")
def test_sanity_check_is_known(tmp_path: Path) -> None:
    native, ours = [], []

    class Read(Callback):
        def on_validation_start(self, trainer: Any, *_: Any) -> None:
            native.append(trainer.sanity_checking)

    bus = HookBus()
    bus.on("before_val")(lambda run: ours.append(run.sanity_checking))
    train(Calls(bus, (), ()), bus, tmp_path, callbacks=[Read()], num_sanity_val_steps=1)
    assert native == ours == [True, False, False]
