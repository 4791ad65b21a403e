"""Rows of the migration table of MMEngine: the table of tests, and the rows of points, counters and requests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.hooks import Hook as ForeignHook
from mmengine.registry import HOOKS as FOREIGN_HOOKS
from mmengine.runner import Runner

from hookbus import HOOKS, Hook, HookBus, build_hooks, every, hookimpl
from hookbus.testing import HostTask

from . import test_migration_data, test_migration_hooks, test_migration_records, test_ranks  # noqa: F401  # they add rows
from .migration_rows import (
    POINT_ROWS,
    CallRecorder,
    attach_and_train,
    build_plain_runner,
    build_plain_trainer,
    call_at,
    runs_row,
)
from .test_bridge import describe_test

Calls = list[tuple[str, int]]


def test_each_row_of_the_page_is_tested() -> None:
    runs_row.check("MMEngine")


def expand_names(cell: str) -> list[str]:
    """Return the methods of a cell; `before_val…` stands for those of the epoch and of the iteration as well."""
    names = re.findall(r"`(\w+…?)`", cell)
    return [name.replace("…", end) for name in names for end in (("", "_epoch", "_iter") if "…" in name else ("",))]


def call_evaluation(scope: str, steps: int) -> Calls:
    """Return the calls of an evaluation with three batches after a number of optimizer steps."""
    iterations = [f"before_{scope}_iter", f"after_{scope}_iter"] * 3
    epoch = [f"before_{scope}_epoch", *iterations, f"after_{scope}_epoch"]
    return [(name, steps) for name in (f"before_{scope}", *epoch, f"after_{scope}")]


EXPECTED: dict[str, Calls] = {
    # A training of 2 epochs with 6 iterations and 3 steps each, which saves after each of them; a test, which is a run
    # of its own; and the resume of another Runner, whose optimizer has made no step.
    "before_run": [("before_run", 0), ("after_run", 6), ("before_run", 6), ("after_run", 6)],
    "before_train": [("before_train", 0), ("after_train", 6)],
    "before_train_epoch": [
        *[("before_train_epoch", 0), ("after_train_epoch", 3)],
        *[("before_train_epoch", 3), ("after_train_epoch", 6)],
    ],
    "before_train_iter": [
        call for i in range(12) for call in (("before_train_iter", i // 2), ("after_train_iter", (i + 1) // 2))
    ],
    "before_val": [*call_evaluation("val", 3), *call_evaluation("val", 6), *call_evaluation("test", 6)],
    "before_save_checkpoint": [
        *[("before_save_checkpoint", 3), ("before_save_checkpoint", 6), ("after_load_checkpoint", 0)]
    ],
}


class StepCounter:
    """Number of steps of the optimizer of a Runner, counted by torch."""

    def __init__(self, runner: Runner) -> None:
        self.steps = 0
        runner.optim_wrapper.optimizer.register_step_post_hook(self.count)

    def count(self, *arguments: Any) -> None:
        self.steps += 1


def record(directory: Path, names: list[str], native: Calls, ours: Calls, **arguments: Any) -> Runner:
    """Return a Runner that records the calls of methods, and with a bus attached that records those of the points."""
    task, bus = HostTask(accumulate=2), HookBus()
    recorder = CallRecorder(lambda name, runner: native.append((name, counter.steps)), *names)
    saving = {"checkpoint": {"type": "CheckpointHook", "interval": 1}, "logger": None}
    options = {"default_hooks": saving, "custom_hooks": [recorder], **describe_test(task), **arguments}
    runner = build_plain_runner(task, directory, **options)
    counter = StepCounter(runner)
    for name in names:
        call_at(bus, name, lambda name, run: ours.append((name, counter.steps)))
    bus.attach(runner)
    return runner


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calls, Calls]:
    """Return the calls of the methods of MMEngine and of the points, of all rows."""
    directory, native, ours = tmp_path_factory.mktemp("points"), list[Any](), list[Any]()
    names = [name for cell in POINT_ROWS for name in expand_names(cell) if name != "after_load_checkpoint"]
    runner = record(directory, names, native, ours)
    runner.train()
    runner.test()
    record(directory, ["after_load_checkpoint"], native, ours, resume=True).train()
    return native, ours


@runs_row.for_rows(POINT_ROWS.items())
@pytest.mark.parametrize("cell", POINT_ROWS)
def test_points_are_emitted_as_the_methods_are_called(cell: str, recorded: tuple[Calls, Calls]) -> None:
    names = expand_names(cell)
    native, ours = ([call for call in calls if call[0] in names] for calls in recorded)
    assert native == EXPECTED[names[0]]
    assert ours == native


def test_epoch_includes_the_validation(tmp_path: Path) -> None:
    bus, points = HookBus(), list[str]()
    names = ["before_epoch", "before_train_epoch", "after_train_epoch", "before_val", "after_val", "after_epoch"]
    for name in names:
        call_at(bus, name, lambda name, run: points.append(name))
    runner = build_plain_runner(HostTask(), tmp_path)
    bus.attach(runner)
    runner.train()
    assert points == names * 2


@runs_row("`every_n_train_iters(runner, n)`", "`@hookimpl(when=every(n))`")
def test_iterations_of_an_interval_are_the_same(tmp_path: Path) -> None:
    native, ours = [], []

    class Native(ForeignHook):  # type: ignore[misc]
        def after_train_iter(self, runner: Any, **arguments: Any) -> None:
            if self.every_n_train_iters(runner, 5):
                native.append(runner.iter + 1)

    class Ours(Hook):
        @hookimpl(when=every(5))
        def after_train_iter(self, run: Any) -> None:
            ours.append(run.iters_done)

    attach_and_train(build_plain_runner(HostTask(), tmp_path, custom_hooks=[Native()]), Ours())
    assert native == ours == [5, 10]


@runs_row(
    "`runner.iter`, `runner.epoch`",
    "`run.iter`, `run.epoch` in an iteration; else `run.iters_done`, `run.epochs_done`",
)
def test_counters_are_the_same(tmp_path: Path) -> None:
    native, ours, bus = [], [], HookBus()
    in_iteration, after_epoch = ["before_train_iter", "after_train_iter"], ["after_val", "after_train"]

    def record_counters(name: str, runner: Any) -> None:
        native.append((name, runner.iter, runner.epoch))

    for name in in_iteration:
        call_at(bus, name, lambda name, run: ours.append((name, run.iter, run.epoch)))
    for name in after_epoch:
        call_at(bus, name, lambda name, run: ours.append((name, run.iters_done, run.epochs_done)))
    recorder = CallRecorder(record_counters, *in_iteration, *after_epoch)
    runner = build_plain_runner(HostTask(), tmp_path, custom_hooks=[recorder])
    bus.attach(runner)
    runner.train()
    iterations = [(name, i, i // 6) for i in range(12) for name in in_iteration]
    assert native == [
        *[*iterations[:12], ("after_val", 6, 1)],
        *[*iterations[12:], ("after_val", 12, 2), ("after_train", 12, 2)],
    ]
    assert ours == native


class Numbered:
    """Hook of either side that records its number at two points."""

    def __init__(self, number: int, calls: list[Any]) -> None:
        self.number, self.calls = number, calls

    def record(self, point: str) -> None:
        self.calls.append((point, self.number))


@runs_row("`after_` points in ascending order", "`order: ascending`")
@pytest.mark.parametrize("order", ["ascending", "nested"])
def test_order_of_hooks_is_that_of_mmengine_if_it_is_ascending(order: Any, tmp_path: Path) -> None:
    native, ours = list[Any](), list[Any]()

    class Native(Numbered, ForeignHook):  # type: ignore[misc]
        def before_train(self, runner: Any) -> None:
            self.record("before")

        def after_train(self, runner: Any) -> None:
            self.record("after")

    class Ours(Numbered):
        @hookimpl
        def before_train(self) -> None:
            self.record("before")

        @hookimpl
        def after_train(self) -> None:
            self.record("after")

    runner, bus = build_plain_runner(HostTask(epochs=1), tmp_path), HookBus(order=order)
    for number in (60, 20):
        runner.register_hook(Native(number, native), priority=number)
        bus.register(Ours(number, ours), f"hook_{number}", priority=number)
    bus.attach(runner)
    runner.train()
    before, after = [("before", 20), ("before", 60)], [("after", 20), ("after", 60)]
    assert native == before + after
    assert ours == (native if order == "ascending" else before + after[::-1])


@runs_row('`custom_hooks = [dict(type="X")]`', "`hooks: [{type: X}]`")
def test_registered_hook_is_built_by_its_name(tmp_path: Path) -> None:
    counts = {"native": 0, "ours": 0}

    class MigratedCounter(ForeignHook):  # type: ignore[misc]
        def after_train_iter(self, runner: Any, **arguments: Any) -> None:
            counts["native"] += 1

    FOREIGN_HOOKS.register_module(module=MigratedCounter, force=True)
    build_plain_runner(HostTask(), tmp_path, custom_hooks=[{"type": "MigratedCounter"}]).train()

    class MigratedCounter(Hook):  # type: ignore[no-redef]
        def after_train_iter(self, runner: Any, data_batch: Any) -> None:
            counts["ours"] += 1

    HOOKS.register_module()(MigratedCounter)
    build_plain_trainer(HostTask(), None, *build_hooks([{"type": "MigratedCounter"}])).fit()
    assert counts == {"native": 12, "ours": 12}
