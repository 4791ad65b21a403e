"""What a hook that records goes through in a process of its own: a kill, a full disk."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookbus.errors import HookWarning
from hookbus.hook import Hook
from hookbus.requests import Request
from hookbus.run import Run
from hookbus.testing.training import fake_training

__all__ = ["EXPECTED", "run_with_faults", "scores_of", "train_with_faults"]

EXPECTED: Mapping[str, list[tuple[int, float]]] = {
    "train/loss": [(step, float(step)) for step in range(1, 11)],
    "lr": [(step, 0.1) for step in range(1, 11)],
    "val/accuracy": [(5, 0.75), (10, 0.875)],
}
"""What two epochs of 5 iterations with the losses 1, 2, ..., 10 leave, by name: (step, value)."""

CHECKPOINT_AT = 4


TRAIN = f"import json, sys; from {__name__} import train_with_faults; train_with_faults(**json.loads(sys.argv[1]))"


def scores_of(epoch: int) -> dict[str, float]:
    """The results of the validation after an epoch, from 1."""
    return {"accuracy": 0.625 + epoch / 8}


def run_with_faults(cls: type[Hook], settings: Mapping[str, Any], work_dir: Path, **faults: Any) -> list[str]:
    """Train in a process of its own, with a checkpoint at iteration 4.

    Args:
        cls: the hook.
        settings: its settings, as JSON has them.
        work_dir: where files go.
        faults: for `train_with_faults`.

    Returns:
        What the user was warned of; nothing where the process was killed.

    Raises:
        AssertionError: the process failed.
    """
    named = f"{cls.__module__}:{cls.__qualname__}"
    given = json.dumps({"hook": named, "settings": dict(settings), "work_dir": str(work_dir), **faults})
    command = [sys.executable, "-c", TRAIN, given]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = -signal.SIGKILL if "kill_at" in faults else 0
    assert done.returncode == expected, f"The process ended with {done.returncode}:\n{done.stderr}"
    return [] if "kill_at" in faults else json.loads(done.stdout.splitlines()[-1])


def train_with_faults(
    hook: str,
    settings: dict[str, Any],
    work_dir: str,
    kill_at: int = 0,
    settle: float = 0.0,
    full_at: int = 0,
    free_at: int = 0,
) -> None:
    """Train, and print as JSON what the user was warned of.

    Args:
        hook: module:class of the hook.
        settings: its settings.
        work_dir: where files go.
        kill_at: at this iteration the process is killed.
        settle: seconds before that.
        full_at, free_at: between these iterations no file can grow.
    """
    module, _, name = hook.partition(":")
    cls = getattr(importlib.import_module(module), name)
    patient = type(name, (cls,), {"pause": 0.05})
    recorder = patient({**settings, "interval": 1}, name=cls({**settings}).name)
    hooks = [recorder, Save(), Kill(kill_at, settle), FullDisk(full_at, free_at)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        fake_training(hooks, batches=5, losses=float, scores=scores_of, work_dir=work_dir)
    print(json.dumps([str(each.message) for each in caught if issubclass(each.category, HookWarning)]))  # noqa: T201


class Save(Hook):
    """Writes a checkpoint."""

    def after_train_iter(self, run: Run) -> None:
        """Ask for it."""
        if run.iters_done == CHECKPOINT_AT:
            run.request_save(saver=self)

    def plan(self, run: Run, _requests: list[Request]) -> Path:
        """Where it is written."""
        return Path(run.require("checkpoints_dir")) / f"{run.iters_done}.pth"

    def write(self, run: Run, checkpoint: dict[str, Any]) -> bool:
        """Write it."""
        from hookbus.state import write_checkpoint

        write_checkpoint(self.plan(run, []), checkpoint, run.iters_done)
        return False


class Kill(Hook):
    """Kills the process as a machine does that goes down.

    Args:
        at: the iteration; 0 for never.
        settle: seconds before that.
    """

    priority = 1000

    def __init__(self, at: int, settle: float) -> None:
        super().__init__()
        self.at, self.settle = at, settle

    def before_train_iter(self, run: Run) -> None:
        """Kill it when so many iterations are done."""
        if self.at and run.iters_done == self.at:
            time.sleep(self.settle)
            os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(Hook):
    """Lets no file grow by more than a few bytes for a while.

    Args:
        begin, end: iterations; 0 for never.
    """

    def __init__(self, begin: int, end: int) -> None:
        super().__init__()
        self.begin, self.end = begin, end

    def before_train_iter(self, run: Run) -> None:
        """Begin or end it."""
        if run.iters_done == self.begin and self.begin:
            time.sleep(1.0)
            assert run.work_dir is not None
            logs = run.work_dir.directory("logs")
            sizes = [path.stat().st_size for path in logs.rglob("*") if path.is_file()]
            _limit(max(sizes) + 20)
        elif run.iters_done == self.end and self.end:
            time.sleep(1.0)
            _limit(resource.RLIM_INFINITY)


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
