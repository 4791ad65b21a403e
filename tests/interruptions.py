"""A training with the standard hooks, interrupted at a specified position.

    python -m tests.interruptions CASE DIRECTORY

trains or resumes in a separate process, and prints the results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Hook, Run, Trainer
from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_eval import EvalHook
from hookbus_logger import JsonlHook, read_jsonl
from tests.crashes import run_in_fork
from tests.toys import OPTIMIZERS, SCHEDULES, Augmented, net, pairs

AVERAGES: dict[str, dict[str, Any] | None] = {
    "no EMA": None,
    "EMA": {"momentum": 0.9, "warm_up": 0},
    "EMA with warm-up and buffers": {"momentum": 0.9, "warm_up": 20, "interval": 2, "update_buffers": True},
    "overlapped EMA": {"momentum": 0.9, "overlap": True},
}
STOPPING: dict[str, dict[str, Any] | None] = {
    # validations are executed after iterations 3, 6, 9, 12 and 15
    "no early stopping": None,
    "one validation before its stop": {"baseline": 0.0, "patience": 3},
    "just before its stop, with weights to restore": {"patience": 2, "min_delta": 0.2},
    "with the best file to restore": {"patience": 3, "min_delta": 0.2, "restore_best_weights": "file"},
}
SAVING: tuple[bool | str, ...] = (False, True, "overlap")
POSITIONS = {  # position of a stop: the point and the number of iterations
    "before the first step": ("before_epoch", 0),
    "at a last batch, within an accumulation": ("after_train_iter", 5),
    "at a validation": ("after_train_iter", 6),
    "within an accumulation": ("after_train_iter", 7),
    "between two validations": ("after_train_iter", 8),
    "at the end of an epoch": ("after_epoch", 5),
}
ENDS = ("a stop", *(f"a kill before renaming number {number} of its save" for number in (1, 2, 4)))
CHOICES: tuple[Sequence[Any], ...] = (
    tuple(AVERAGES), tuple(STOPPING), SAVING, tuple(POSITIONS), ENDS, tuple(OPTIMIZERS), tuple(SCHEDULES), (0, 2)
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Combination of settings, and the position and type of the interruption."""

    averages: str = "no EMA"
    stopping: str = "no early stopping"
    saving: bool | str = False
    position: str = "between two validations"
    end: str = "a stop"
    optimizer: str = "SGD"
    schedule: str = "step"
    workers: int = 0

    def __str__(self) -> str:
        saving = {False: "synchronous save", True: "async save", "overlap": "overlapped save"}[self.saving]
        training = f"{self.optimizer}, per {self.schedule}, {self.workers} workers"
        return f"{self.averages}, {self.stopping}, {saving}, {self.end} {self.position}, {training}"


class StopAt(Hook):
    """Hook that requests the end of the run at a point, after N iterations."""

    def __init__(self, point: str, iteration: int) -> None:
        super().__init__()
        self.point, self.iteration = point, iteration

    def before_epoch(self, run: Run) -> None:
        self._stop(run, "before_epoch")

    def after_train_iter(self, run: Run) -> None:
        self._stop(run, "after_train_iter")

    def after_epoch(self, run: Run) -> None:
        self._stop(run, "after_epoch")

    def _stop(self, run: Run, point: str) -> None:
        if (point, run.iters_done) == (self.point, self.iteration):
            run.request_stop("for now")


class KillAtSave(Hook):
    """Hook that kills the process during the save after an iteration, before one of its renames."""

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
    """Train or resume in a directory."""
    torch.manual_seed(0)
    model = nn.Sequential(*net(), nn.BatchNorm1d(2))
    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    workers = {"num_workers": case.workers, "persistent_workers": case.workers > 0}
    return Trainer(
        model,
        optimizer,
        nn.functional.cross_entropy,
        DataLoader(Augmented(), batch_size=4, shuffle=True, **workers),
        pairs(2),
        scheduler=SCHEDULES[case.schedule](optimizer),
        scheduler_interval="step" if case.schedule == "step" else "epoch",
        epochs=3,
        accumulate=2,
        seed=5,
        hooks=[*build_hooks(case), *more],
        default_hooks=False,
        device="cpu",
        work_dir=directory,
        resume="auto",
    ).fit()


def build_hooks(case: Case) -> list[Hook]:
    """Return the hooks of a case."""
    averages, stopping = AVERAGES[case.averages], STOPPING[case.stopping]
    return [
        CheckpointHook(interval=1, by_epoch=False, best_metric="val/loss", async_save=case.saving),
        EvalHook(interval=3, by_epoch=False, save_best=False),
        JsonlHook(interval=4),
        *([EMAHook(averages)] if averages is not None else []),
        *([EarlyStoppingHook(stopping)] if stopping is not None else []),
    ]


def interrupt(case: Case, directory: Path) -> None:
    """Train up to the position of the case, and end as the case specifies."""
    point, iteration = POSITIONS[case.position]
    if case.end == "a stop":
        train(case, directory, StopAt(point, iteration))
        return
    kill = KillAtSave(max(iteration, 1), int(case.end.split()[5]))
    assert os.WIFSIGNALED(run_in_fork(lambda: train(case, directory, kill)))


def get_results(directory: Path, run: Run) -> dict[str, Any]:
    """Return the results of a training in a comparable form."""
    assert run.model is not None
    files = {path.name: hash_checkpoint(path) for path in sorted((directory / "checkpoints").glob("*.pth"))}
    status = json.loads((directory / "status.json").read_text())
    log = read_jsonl(directory / "logs" / "metrics.jsonl")
    return {
        "model": fingerprint(run.model.state_dict()),
        "files": files,
        "status": {key: status[key] for key in ("outcome", "reasons", "steps_done", "epochs_done", "best", "metrics")},
        "log": [{key: value for key, value in row.items() if key != "time"} for row in log],
    }


def hash_checkpoint(path: Path) -> Mapping[str, str]:
    """Return hashes of the parts of a checkpoint, without times, IDs, paths and the number of saves."""
    checkpoint = read_checkpoint(path)
    # Times, IDs and paths differ between equal runs.
    loop, states = checkpoint["loop"], {name: hook_state["state"] for name, hook_state in checkpoint["hooks"].items()}
    loop["clock"] = {name: value for name, value in loop["clock"].items() if "second" not in name}
    loop["best"] = {name: {**best, "path": Path(best["path"]).name} for name, best in loop["best"].items()}
    parts = {
        name: checkpoint[name] for name in ("state_dict", "ema_state_dict", "optimizer", "rng") if name in checkpoint
    }
    parts |= {name: value for name, value in loop.items() if name != "id"}
    states["checkpoint"] = states["checkpoint"]["metrics"]
    # The digest of a row, which contains a time.
    states["jsonl"] = {key: value for key, value in states.get("jsonl", {}).items() if key != "first"}
    parts |= {name: state for name, state in states.items() if state}
    return {name: fingerprint(part) for name, part in parts.items()}


if __name__ == "__main__":
    case, directory = Case(*json.loads(sys.argv[1])), Path(sys.argv[2])
    sys.stdout.write(json.dumps(get_results(directory, train(case, directory))))
