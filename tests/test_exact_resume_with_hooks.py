"""With the hooks that every training uses, a resumed run leaves what the run that was never interrupted leaves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Hook, Run, Trainer
from hookbus.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook, read_jsonl
from tests.dying import in_child
from tests.toys import Augmented, net, pairs


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


AVERAGES: dict[str, dict[str, Any] | None] = {
    "no EMA": None,
    "EMA": {"momentum": 0.9, "warm_up": 0},
    "EMA with warm-up and buffers": {"momentum": 0.9, "warm_up": 20, "interval": 2, "update_buffers": True},
    "overlapped EMA": {"momentum": 0.9, "overlap": True},
}
STOPPING: dict[str, dict[str, Any] | None] = {
    # validations come after iterations 3, 6, 9, 12 and 15
    "no early stopping": None,
    "one validation before its stop": {"baseline": 0.0, "patience": 3},
    "just before its stop, with weights to bring back": {"patience": 2, "min_delta": 0.2},
    "with the best file to bring back": {"patience": 3, "min_delta": 0.2, "restore_best_weights": "file"},
}
SAVING: tuple[bool | str, ...] = (False, True, "overlap")
PLACES = {"between two validations": 8, "amid an accumulation": 7, "at a validation": 6}
ENDS = ("a stop", *(f"a kill before renaming number {number} of its save" for number in (1, 2, 4)))


@dataclass(frozen=True)
class Case:
    averages: str
    stopping: str
    saving: bool | str
    place: str
    end: str

    def __str__(self) -> str:
        return f"{self.averages}, {self.stopping}, async_save {self.saving}, {self.end} {self.place}"


class Stops(Hook):
    """Asks for the end of the run after an iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_stop("for now")


class Dies(Hook):
    """Kills the process in the middle of the save after an iteration: before a renaming."""

    def __init__(self, iteration: int, renaming: int) -> None:
        super().__init__()
        self.iteration, self.renaming = iteration, renaming

    def before_save_checkpoint(self, run: Run) -> None:
        if run.iters_done != self.iteration:
            return
        real, number = os.replace, count(1)

        def replace(source: Any, target: Any) -> None:
            if next(number) == self.renaming:
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)

        os.replace = replace


def train(case: Case, directory: Path, *more: Hook) -> Run:
    """Train, or go on, in a directory."""
    torch.manual_seed(0)
    resume = "auto" if (directory / "checkpoints").exists() else "never"
    model = nn.Sequential(*net(), nn.BatchNorm1d(2))
    averages, stopping = AVERAGES[case.averages], STOPPING[case.stopping]
    hooks: list[Hook] = [
        CheckpointHook(interval=1, by_epoch=False, best_metric="val/loss", async_save=case.saving),
        EvalHook(interval=3, by_epoch=False, save_best=False),
        JsonlHook(interval=4),
        *([EMAHook(averages)] if averages is not None else []),
        *([EarlyStoppingHook(stopping)] if stopping is not None else []),
    ]
    return Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.02),
        nn.functional.cross_entropy,
        DataLoader(Augmented(), batch_size=4, shuffle=True),
        pairs(2),
        epochs=3,
        accumulate=2,
        seed=5,
        hooks=[*hooks, *more],
        default_hooks=False,
        device="cpu",
        work_dir=directory,
        resume=resume,
    ).fit()


def left_behind(directory: Path, run: Run) -> dict[str, Any]:
    """Everything that a training leaves, in a form that can be compared."""
    assert run.model is not None
    files = {path.name: contents(path) for path in sorted((directory / "checkpoints").glob("*.pth"))}
    status = json.loads((directory / "status.json").read_text())
    log = read_jsonl(directory / "logs" / "metrics.jsonl")
    return {
        "model": fingerprint(run.model.state_dict()),
        "files": files,
        "status": {key: status[key] for key in ("outcome", "reasons", "steps_done", "epochs_done", "best", "metrics")},
        "log": [{key: value for key, value in row.items() if key != "time"} for row in log],
    }


def contents(path: Path) -> Mapping[str, str]:
    """Hashes of the parts of a checkpoint, without times, ids, places and how often it saved."""
    checkpoint = read_checkpoint(path)
    loop, states = checkpoint["loop"], {name: each["state"] for name, each in checkpoint["hooks"].items()}
    loop["clock"] = {name: value for name, value in loop["clock"].items() if "second" not in name}
    loop["best"] = {name: {**best, "path": Path(best["path"]).name} for name, best in loop["best"].items()}
    parts = {
        name: checkpoint[name] for name in ("state_dict", "ema_state_dict", "optimizer", "rng") if name in checkpoint
    }
    parts |= {name: value for name, value in loop.items() if name != "id"}
    states["checkpoint"] = states["checkpoint"]["metrics"]
    parts |= {name: state for name, state in states.items() if state}
    return {name: fingerprint(part) for name, part in parts.items()}


def compare(case: Case, tmp_path: Path) -> None:
    whole = left_behind(tmp_path / "whole", train(case, tmp_path / "whole"))
    place = PLACES[case.place]
    if case.end == "a stop":
        train(case, tmp_path / "stopped", Stops(place))
    else:
        dies = Dies(place, int(case.end.split()[5]))
        assert os.WIFSIGNALED(in_child(lambda: train(case, tmp_path / "stopped", dies)))
    run = train(case, tmp_path / "stopped")

    assert left_behind(tmp_path / "stopped", run) == whole


CHOICES: tuple[tuple[Any, ...], ...] = (tuple(AVERAGES), tuple(STOPPING), SAVING, tuple(PLACES), ENDS)


def selected() -> list[Case]:
    """One case for each pair of values of any two of the choices."""
    missing = {
        (a, b, x, y)
        for a, b in product(range(len(CHOICES)), repeat=2)
        if a < b
        for x, y in product(CHOICES[a], CHOICES[b])
    }
    cases = []
    every = list(product(*CHOICES))
    while missing:
        best = max(every, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        cases.append(Case(*best))
    return cases


def _pairs(case: tuple[Any, ...]) -> set[tuple[int, int, Any, Any]]:
    return {(a, b, case[a], case[b]) for a in range(len(case)) for b in range(a + 1, len(case))}


@pytest.mark.parametrize("case", selected(), ids=str)
def test_everything_that_is_left_is_the_same(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(*each) for each in product(*CHOICES)], ids=str)
def test_in_every_combination(case: Case, tmp_path: Path) -> None:
    compare(case, tmp_path)


def test_early_stopping_is_where_the_cases_say(tmp_path: Path) -> None:
    case = Case("no EMA", "one validation before its stop", False, "between two validations", "a stop")
    train(case, tmp_path, Stops(8))
    state = read_checkpoint(tmp_path / "checkpoints" / "last.pth")["hooks"]["early_stopping"]["state"]
    assert state["wait_count"] == 2

    run = train(case, tmp_path)
    assert (run.outcome, run.iters_done) == ("stopped", 9)
