"""The log of a run that was stopped and resumed is that of the run that never was, row for row."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
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
from hookbus_logger.records import RecordingHook
from hookbus_timer import IterTimerHook
from tests.dying import in_child
from tests.toys import net, pairs

EPOCHS, BATCHES = 3, 7
PLACES = {
    "in the middle of an interval": 6,
    "at the end of an interval": 4,
    "after an interval that waits for its update": 3,
    "before the first record of an epoch": 10,
    "in the middle of a second interval": 12,
    "at the end of an epoch": 14,
    "at the end of an epoch in the middle of an accumulation": 7,
    "just before the end": 20,
    "at the end": 21,
}
"""After how many of the 21 iterations the run is stopped."""


@pytest.fixture(autouse=True)
def _the_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that is fast, since no power is lost here, and Ctrl-C as in a terminal."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


class Ends(Hook):
    """Ends the run at an iteration, one way or another."""

    WAYS: Mapping[str, Callable[[Run], object]] = {
        "a request": lambda run: run.request_stop("enough"),
        "Ctrl-C": lambda run: signal.raise_signal(signal.SIGINT),
        "SIGTERM": lambda run: signal.raise_signal(signal.SIGTERM),
        "SIGKILL": lambda run: os.kill(os.getpid(), signal.SIGKILL),
    }

    def __init__(self, way: str, iteration: int) -> None:
        super().__init__()
        self.way, self.iteration = way, iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            self.WAYS[self.way](run)


class Points(RecordingHook):
    """A writer of points that can be hidden from a step on, but not changed, as those of TensorBoard are."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(settings)
        self.path = path

    def before_train(self, run: Run) -> None:
        super().before_train(run)
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        self.path.write_text("".join(line for line in lines if int(line.split()[0]) <= run.steps_done))

    def write_record(self, run: Run, metrics: Metrics, step: int, rates: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(f"{step} {run.iters_done} {dict(metrics)} {dict(rates)}\n")


class OnConsole(Hook):
    """Has everything that is told written into a file."""

    priority = Priority.HIGHEST

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.file = path.open("a")

    def before_run(self, run: Run) -> None:
        run.provide("console", Console(file=self.file, width=120, highlight=False))

    def cleanup(self) -> None:
        self.file.close()


def hooks(directory: Path, settings: Mapping[str, Any]) -> list[Hook]:
    directory.mkdir(exist_ok=True)
    return [
        OnConsole(directory / "console"),
        LoggerHook(interval=4, **settings),
        JsonlHook(interval=3, **settings),
        Points(directory / "points", interval=2, by_epoch=False),
        IterTimerHook(interval=3),
        EvalHook(interval=5, by_epoch=False),
        CheckpointHook(interval=2, by_epoch=False, best_metric="val/loss"),
        PreemptionHook(),
    ]


def by_trainer(directory: Path, hooks: list[Hook], accumulate: int, resume: str) -> None:
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
        resume=resume,
    ).fit()


def by_hand(directory: Path, hooks: list[Hook], accumulate: int, resume: str) -> None:
    torch.manual_seed(0)
    bus, model = HookBus(hooks), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def validate() -> dict[str, Any]:
        return {"loss": sum(nn.functional.cross_entropy(model(x), y) for x, y in pairs(2)) / 2}

    options: dict[str, Any] = {"model": model, "optimizer": optimizer, "validate": validate, "epochs": EPOCHS}
    with bus.run(**options, work_dir=directory, resume=resume) as run:
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
    resume = "auto" if (directory / "checkpoints").exists() else "never"
    loop(directory, [*hooks(directory, settings), *more], accumulate, resume)


def rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of the file of JSON lines without times: of a row of times, only which there are."""
    found = [
        {name: value for name, value in row.items() if name != "time"}
        for row in read_jsonl(directory / "logs" / "metrics.jsonl")
    ]
    for row in found:
        if row["kind"] == "scalars":
            row["values"] = sorted(row["values"])
    return found


def told(directory: Path) -> list[str]:
    """The lines on the console that are about results; without times, which stand behind them."""
    lines = (directory / "console").read_text().splitlines()
    return [line.partition("  time/")[0].rstrip() for line in lines if line.startswith(("train", "val", " "))]


def compare(tmp_path: Path, loop: Any, way: str, iteration: int, accumulate: int, settings: Mapping[str, Any]) -> None:
    arguments = (accumulate, settings)
    train(loop, tmp_path / "whole", *arguments)
    stopped = tmp_path / "stopped"
    if way == "SIGKILL":
        assert os.WIFSIGNALED(in_child(lambda: train(loop, stopped, *arguments, Ends(way, iteration))))
    elif way == "Ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            train(loop, stopped, *arguments, Ends(way, iteration))
    else:
        train(loop, stopped, *arguments, Ends(way, iteration))
    before = told(stopped)
    train(loop, stopped, *arguments)

    assert rows(stopped) == rows(tmp_path / "whole")
    assert (stopped / "points").read_text() == (tmp_path / "whole" / "points").read_text()
    whole, after = told(tmp_path / "whole"), told(stopped)[len(before) :]
    if way == "SIGKILL":  # what was told after the last checkpoint cannot be taken back, and is told again
        assert (whole[: len(before)], whole[-len(after) :]) == (before, after)
        assert len(before) + len(after) >= len(whole)
    else:
        assert before + after == whole


ACCUMULATE = (1, 2)
SETTINGS: dict[str, dict[str, Any]] = {
    "within epochs": {},
    "and what is left of them": {"ignore_last": False},
    "over the whole run": {"by_epoch": False},
}
LOOPS = {"Trainer": by_trainer, "own loop": by_hand}


def selected() -> list[tuple[str, str, int, str, str]]:
    """Each place with each way to stop; the other choices in turn."""
    cases = enumerate(product(PLACES, Ends.WAYS))
    return [
        (place, way, ACCUMULATE[(i // 4 + i) % 2], list(SETTINGS)[i % 3], list(LOOPS)[(i // 2) % 2])
        for i, (place, way) in cases
    ]


@pytest.mark.parametrize(("place", "way", "accumulate", "settings", "loop"), selected())
def test_it_is_that_of_the_uninterrupted_run(
    tmp_path: Path, place: str, way: str, accumulate: int, settings: str, loop: str
) -> None:
    compare(tmp_path, LOOPS[loop], way, PLACES[place], accumulate, SETTINGS[settings])


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("way", Ends.WAYS)
@pytest.mark.parametrize("iteration", range(1, EPOCHS * BATCHES + 1))
def test_at_every_place_and_in_every_way(
    tmp_path: Path, iteration: int, way: str, accumulate: int, settings: str
) -> None:
    loop = list(LOOPS.values())[iteration % 2]
    compare(tmp_path, loop, way, iteration, accumulate, SETTINGS[settings])


@pytest.mark.parametrize("way", ["a request", "SIGTERM"])
def test_of_a_run_that_is_stopped_again_and_again(tmp_path: Path, way: str) -> None:
    train(by_trainer, tmp_path / "whole", 2, {})
    for iteration in (2, 3, 7, 8, 13, 20):
        train(by_trainer, tmp_path / "stopped", 2, {}, Ends(way, iteration))
    train(by_trainer, tmp_path / "stopped", 2, {})

    assert rows(tmp_path / "stopped") == rows(tmp_path / "whole")
    assert told(tmp_path / "stopped") == told(tmp_path / "whole")
