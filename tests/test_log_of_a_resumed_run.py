"""The log of a stopped and resumed run equals the log of the uninterrupted run, row by row."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from hookbus import Hook, HookBus, Metrics, Priority, Run, Trainer
from hookbus_checkpoint import CheckpointHook, PreemptionHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook, LoggerHook, read_jsonl
from hookbus_logger.epoch_recorder import EpochRecorder
from hookbus_timer import IterTimerHook
from tests.coverings import covering_parameters
from tests.crashes import run_in_fork
from tests.toys import net, pairs

EPOCHS, BATCHES = 3, 7
POSITIONS = {
    "within an interval": 6,
    "at the end of an interval": 4,
    "at the end of an interval, before its optimizer step": 3,
    "before the first record of an epoch": 10,
    "within a second interval": 12,
    "at the end of an epoch": 14,
    "at the end of an epoch within an accumulation": 7,
    "just before the end": 20,
    "at the end": 21,
}
"""Number of completed iterations, of 21, at which the run is stopped."""


@pytest.fixture(autouse=True)
def _set_up_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip fsync, since no test here simulates a power failure, and handle SIGINT as in a terminal."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


class EndingHook(Hook):
    """Hook that ends the run after an iteration, by a request or a signal."""

    METHODS: Mapping[str, Callable[[Run], object]] = {
        "a request": lambda run: run.request_stop("test"),
        "Ctrl-C": lambda run: signal.raise_signal(signal.SIGINT),
        "SIGTERM": lambda run: signal.raise_signal(signal.SIGTERM),
        "SIGKILL": lambda run: os.kill(os.getpid(), signal.SIGKILL),
    }

    def __init__(self, method: str, iteration: int) -> None:
        super().__init__()
        self.method, self.iteration = method, iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            self.METHODS[self.method](run)


class AppendOnlyHook(EpochRecorder):
    """Writer whose records can be truncated from a step on, but not replaced, as in TensorBoard."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(settings)
        self.path = path

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        self.path.write_text("".join(line for line in lines if int(line.split()[0]) <= run.steps_done))

    def write_record(self, run: Run, metrics: Metrics, step: int) -> None:
        with self.path.open("a") as file:
            file.write(f"{step} {run.iters_done} {dict(metrics)} {dict(run.learning_rates())}\n")


class ConsoleFileHook(Hook):
    """Hook that provides a console that writes to a file."""

    priority = Priority.HIGHEST

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("a")

    def before_run(self, run: Run) -> None:
        run.provide("console", Console(file=self.file, width=120, highlight=False))

    def cleanup(self) -> None:
        self.file.close()


def make_hooks(directory: Path, settings: Mapping[str, Any]) -> list[Hook]:
    directory.mkdir(exist_ok=True)
    return [
        ConsoleFileHook(directory / "console"),
        LoggerHook(interval=4, **settings),
        JsonlHook(interval=3, **settings),
        AppendOnlyHook(directory / "points", interval=2, by_epoch=False),
        IterTimerHook(interval=3),
        EvalHook(interval=5, by_epoch=False),
        CheckpointHook(interval=2, by_epoch=False, best_metric="val/loss"),
        PreemptionHook(),
    ]


def run_trainer(directory: Path, hooks: list[Hook], accumulate: int) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    Trainer(
        model,
        optimizer,
        nn.functional.cross_entropy,
        pairs(BATCHES),
        pairs(2),
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        scheduler_interval="step",
        epochs=EPOCHS,
        accumulate=accumulate,
        hooks=hooks,
        default_hooks=False,
        device="cpu",
        work_dir=directory,
        resume="auto",
    ).fit()


def run_custom_loop(directory: Path, hooks: list[Hook], accumulate: int) -> None:
    torch.manual_seed(0)
    bus, model = HookBus(hooks), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def validate() -> dict[str, Any]:
        return {"loss": sum(nn.functional.cross_entropy(model(x), y) for x, y in pairs(2)) / 2}

    options: dict[str, Any] = {"model": model, "optimizer": optimizer, "validate": validate, "epochs": EPOCHS}
    with bus.run(**options, work_dir=directory, resume="auto") as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, (x, y) in run.batches(pairs(BATCHES)):
                bus.emit("before_train_iter", batch_idx=i, batch=(x, y))
                if run.iters_done % accumulate == 0:
                    optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                (loss / accumulate).backward()
                if (run.iters_done + 1) % accumulate == 0:
                    optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=(x, y), outputs={"loss": loss})
            bus.emit("after_train_epoch")


def train(loop: Any, directory: Path, accumulate: int, settings: Mapping[str, Any], *more: Hook) -> None:
    loop(directory, [*make_hooks(directory, settings), *more], accumulate)


def read_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the JSON Lines file without times; rows of durations are reduced to their names."""
    rows = [
        {name: value for name, value in row.items() if name != "time"}
        for row in read_jsonl(directory / "logs" / "metrics.jsonl")
    ]
    for row in rows:
        if row["kind"] == "scalars":
            row["values"] = sorted(row["values"])
    return rows


def read_console(directory: Path) -> list[str]:
    """Return the console lines with results, without the times at their ends."""
    lines = (directory / "console").read_text().splitlines()
    return [line.partition("  time/")[0].rstrip() for line in lines if line.startswith(("train", "val", " "))]


Uninterrupted = Callable[[str, int, str], Path]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Return a function that trains without a stop, once with each loop and settings, and returns the directory."""

    @cache
    def train_once(loop: str, accumulate: int, settings: str) -> Path:
        directory = tmp_path_factory.mktemp("uninterrupted") / "run"
        train(LOOPS[loop], directory, accumulate, SETTINGS[settings])
        return directory

    return train_once


def compare(
    reference: Path, stopped: Path, loop: Any, method: str, iteration: int, accumulate: int, settings: Mapping[str, Any]
) -> None:
    arguments = (accumulate, settings)
    if method == "SIGKILL":
        assert os.WIFSIGNALED(run_in_fork(lambda: train(loop, stopped, *arguments, EndingHook(method, iteration))))
    elif method == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            train(loop, stopped, *arguments, EndingHook(method, iteration))
    else:
        train(loop, stopped, *arguments, EndingHook(method, iteration))
    before = read_console(stopped)
    train(loop, stopped, *arguments)

    assert read_rows(stopped) == read_rows(reference)
    assert (stopped / "points").read_text() == (reference / "points").read_text()
    expected, after = read_console(reference), read_console(stopped)[len(before) :]
    if method == "SIGKILL":
        # Lines printed after the last checkpoint cannot be removed and are printed again.
        assert (expected[: len(before)], expected[-len(after) :]) == (before, after)
        assert len(before) + len(after) >= len(expected)
    else:
        assert before + after == expected


ACCUMULATE = (1, 2)
SETTINGS: dict[str, dict[str, Any]] = {
    "within epochs": {},
    "within epochs, with incomplete intervals": {"ignore_last": False},
    "over the run": {"by_epoch": False},
}
LOOPS = {"Trainer": run_trainer, "custom loop": run_custom_loop}


def select_cases() -> list[tuple[str, str, int, str, str]]:
    """Return each position with two methods to stop; the other parameters alternate."""
    methods, settings, loops = list(EndingHook.METHODS), list(SETTINGS), list(LOOPS)
    return [
        (
            position,
            methods[2 * k + p % 2],
            ACCUMULATE[(p // 4 + k) % 2],
            settings[(2 * p + k) % 3],
            loops[(p // 2 + k) % 2],
        )
        for (p, position), k in product(enumerate(POSITIONS), (0, 1))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("position", "method", "accumulate", "settings", "loop"), select_cases())
def test_log_equals_that_of_the_uninterrupted_run(
    uninterrupted: Uninterrupted, tmp_path: Path, position: str, method: str, accumulate: int, settings: str, loop: str
) -> None:
    reference = uninterrupted(loop, accumulate, settings)
    compare(reference, tmp_path / "run", LOOPS[loop], method, POSITIONS[position], accumulate, SETTINGS[settings])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("iteration", "method", "accumulate", "settings", "loop"),
    covering_parameters(
        (range(1, EPOCHS * BATCHES + 1), tuple(EndingHook.METHODS), (1, 2, 3), tuple(SETTINGS), tuple(LOOPS)), 2
    ),
)
def test_log_is_equal_at_every_iteration_with_every_method(
    uninterrupted: Uninterrupted, tmp_path: Path, iteration: int, method: str, accumulate: int, settings: str, loop: str
) -> None:
    reference = uninterrupted(loop, accumulate, settings)
    compare(reference, tmp_path / "run", LOOPS[loop], method, iteration, accumulate, SETTINGS[settings])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["a request", "SIGTERM"])
def test_log_is_equal_after_repeated_stops(tmp_path: Path, method: str) -> None:
    train(run_trainer, tmp_path / "uninterrupted", 2, {})
    for iteration in (2, 3, 7, 8, 13, 20):
        train(run_trainer, tmp_path / "stopped", 2, {}, EndingHook(method, iteration))
    train(run_trainer, tmp_path / "stopped", 2, {})

    assert read_rows(tmp_path / "stopped") == read_rows(tmp_path / "uninterrupted")
    assert read_console(tmp_path / "stopped") == read_console(tmp_path / "uninterrupted")
