"""Rows of docs/coming-from.md: callbacks of Transformers, and the points, requests and counters that replace them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: run `make bridges HOST=transformers`")

from transformers import TrainerCallback

from hookbus import HookBus, Run
from hookbus.testing import HostTask
from hookbus_logger import JsonlHook

from . import test_migration_evaluation, test_migration_hooks, test_migration_records  # noqa: F401  # they add rows
from .migration import covers, get_logs, get_saved, get_weights, train_native

Calls = list[tuple[int, int]]

# Two epochs of six batches, with a step every second batch. Of each row, the steps done at each call, as (position in
# the row, steps), and the condition of each point.
POINT_ROWS: dict[tuple[str, str], Calls] = {
    ("`on_train_begin`, `on_train_end`", "`before_train`, `after_train`"): [(0, 0), (1, 6)],
    ("`on_epoch_begin`, `on_epoch_end`", "`before_epoch`, `after_epoch`"): [(0, 0), (1, 3), (0, 3), (1, 6)],
    (
        "`on_step_begin`, `on_step_end`",
        "`before_train_iter` if `run.accumulating` is False, `after_train_iter` if `run.stepped`",
    ): [entry for step in range(6) for entry in ((0, step), (1, step + 1))],
    ("`on_substep_end`", "`after_train_iter` if `run.stepped` is False"): [(0, step) for step in range(6)],
    ("`on_pre_optimizer_step`, `on_optimizer_step`", "`before_optimizer_step`, `after_optimizer_step`"): [
        entry for step in range(6) for entry in ((0, step), (1, step + 1))
    ],
    ("`on_evaluate`", "`after_val`"): [(0, 3), (0, 6)],
    ("`on_save`", "`after_save_checkpoint`"): [(0, 3), (0, 6)],
}
CONDITIONS: dict[str, Callable[[Run], bool]] = {
    "": lambda run: True,
    "if `run.accumulating` is False": lambda run: not run.accumulating,
    "if `run.stepped`": lambda run: run.stepped,
    "if `run.stepped` is False": lambda run: not run.stepped,
}


class Recorder(TrainerCallback):
    """Record each call of methods, with the number of steps of the Trainer."""

    def __init__(self, *names: str) -> None:
        self.calls: Calls = []
        for position, name in enumerate(names):
            setattr(self, name, self._make(position, is_late=name == "on_optimizer_step"))

    def _make(self, position: int, *, is_late: bool) -> Any:
        # The Trainer counts a step after `on_optimizer_step`.
        def record(args: Any, state: Any, control: Any, **_: Any) -> None:
            self.calls.append((position, state.global_step + is_late))

        return record


def record_points(cell: str, calls: Calls) -> HookBus:
    """Return a bus that records each of the points of a cell, with the number of steps of the run."""
    bus = HookBus()
    on: Any = bus.on  # whose overloads require literal names
    for position, (point, condition) in enumerate(re.findall(r"`((?:before|after)_\w+)`((?: [^,]+)?)", cell)):
        on(point, name=f"record_{position}")(make_recorder(position, CONDITIONS[condition.strip()], calls))
    return bus


def make_recorder(position: int, condition: Callable[[Run], bool], calls: Calls) -> Callable[[Run], None]:
    def record(run: Run) -> None:
        if condition(run):
            calls.append((position, run.steps_done))

    return record


def test_every_row_has_a_test() -> None:
    covers.check("Hugging Face Trainer")


@covers.for_rows(POINT_ROWS)
@pytest.mark.parametrize(("row", "expected"), POINT_ROWS.items(), ids=lambda value: value[0] if value else "")
def test_points_are_emitted_when_the_callback_is_called(row: tuple[str, str], expected: Calls, tmp_path: Path) -> None:
    emitted: Calls = []
    recorder = Recorder(*re.findall(r"`(on_\w+)`", row[0]))
    train_native(tmp_path, HostTask(accumulate=2), [recorder], hooks=[record_points(row[1], emitted)])
    assert recorder.calls == expected
    assert emitted == expected


@covers("`on_log`", "`log_scalars`, see [Logging](logging.md#observing-what-is-logged)")
def test_logged_values_are_observed(tmp_path: Path) -> None:
    logged: list[tuple[int, float]] = []
    observed: list[tuple[int, float]] = []

    class Log(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logged.extend((state.global_step, logs[name]) for name in ("loss", "eval_loss") if name in logs)

    bus = HookBus([JsonlHook(interval=1)])

    @bus.on("log_scalars")
    def observe(values: Any, step: int) -> None:
        observed.extend((step, values[name]) for name in ("train/loss", "val/loss") if name in values)

    train_native(tmp_path, callbacks=[Log()], hooks=[bus], logging_strategy="steps", logging_steps=1)
    assert [step for step, _ in logged] == [*range(1, 7), 6, *range(7, 13), 12]
    assert observed == [(step, pytest.approx(value, abs=1e-4)) for step, value in logged]  # 4.57 rounds to 4 digits


class Control(TrainerCallback):
    """Set an attribute of the control object at the end of the second step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            setattr(control, self.name, True)


def request_at_second_step(request: str, *arguments: Any) -> HookBus:
    bus = HookBus()

    @bus.on("after_train_iter")
    def act(run: Run) -> None:
        if run.stepped and run.steps_done == 2:
            getattr(run, f"request_{request}")(*arguments)

    return bus


@covers("`control.should_evaluate = True`", "`run.request_validation()`")
def test_both_evaluate(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": HostTask(accumulate=2), "eval_strategy": "no", "save_strategy": "no"}
    native = train_native(tmp_path / "native", callbacks=[Control("should_evaluate")], **options)
    options["task"] = HostTask(accumulate=2)
    trainer = train_native(tmp_path / "hook", hooks=[request_at_second_step("validation")], **options)
    assert get_logs(trainer, "eval_loss") == get_logs(native, "eval_loss")
    assert [step for step, _ in get_logs(native, "eval_loss")] == [2]


@covers("`control.should_save = True`", "`run.request_save()`")
def test_both_save(tmp_path: Path) -> None:
    options = {"eval_strategy": "no", "save_strategy": "no"}
    train_native(tmp_path / "native", HostTask(accumulate=2), [Control("should_save")], **options)
    hooks = [request_at_second_step("save")]
    train_native(tmp_path / "hook", HostTask(accumulate=2), hooks=hooks, **options)
    assert get_saved(tmp_path / "hook") == get_saved(tmp_path / "native") == ["checkpoint-2"]


@covers("`control.should_training_stop = True`", '`run.request_stop("reason")`')
def test_both_stop(tmp_path: Path) -> None:
    native = train_native(tmp_path / "native", HostTask(accumulate=2), [Control("should_training_stop")])
    hooks = [request_at_second_step("stop", "enough")]
    trainer = train_native(tmp_path / "hook", HostTask(accumulate=2), hooks=hooks)
    assert native.state.global_step == trainer.state.global_step == 2
    assert get_logs(trainer, "eval_loss") == get_logs(native, "eval_loss")
    assert torch.equal(get_weights(trainer.model), get_weights(native.model))


@covers("`state.global_step`", "`run.steps_done`")
def test_counters_are_equal(tmp_path: Path) -> None:
    bus, counts, recorder = HookBus(), [], Recorder("on_step_end")
    bus.on("after_train_iter")(lambda run: counts.append(run.steps_done))
    trainer = train_native(tmp_path, HostTask(accumulate=3), [recorder], hooks=[bus])
    assert [steps for _, steps in recorder.calls] == [1, 2, 3, 4]
    assert counts == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert trainer.state.global_step == bus.current.steps_done == 4
