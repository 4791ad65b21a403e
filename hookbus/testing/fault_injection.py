"""Training in a separate process with injected faults: SIGKILL, and a full disk."""

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

from hookbus._run.run import Run
from hookbus.errors import HookWarning
from hookbus.hook import Hook
from hookbus.testing.training import CheckpointWriter, fake_training

EXPECTED: Mapping[str, list[tuple[int, float]]] = {
    "train/loss": [(step, float(step)) for step in range(1, 11)],
    "lr": [(step, 0.1) for step in range(1, 11)],
    "val/accuracy": [(5, 0.75), (10, 0.875)],
}
"""Expected records of two epochs of 5 iterations with the losses 1, 2, ..., 10: (step, value) pairs by name."""

CHECKPOINT_AT = 4

TRAIN_SCRIPT = (
    f"import json, sys; from {__name__} import train_with_faults; train_with_faults(**json.loads(sys.argv[1]))"
)


def get_scores(epoch: int) -> dict[str, float]:
    """Return the results of the validation after an epoch, starting at 1."""
    return {"accuracy": 0.625 + epoch / 8}


def run_with_faults(cls: type[Hook], settings: Mapping[str, Any], work_dir: Path, **faults: Any) -> list[str]:
    """Train in a separate process, with a checkpoint at iteration 4.

    Args:
        cls: Hook class.
        settings: JSON-compatible settings of the hook.
        work_dir: Output directory.
        faults: Keyword arguments of `train_with_faults`.

    Returns:
        Warnings of the training; empty if the process was killed.

    Raises:
        AssertionError: If the process failed.
    """
    hook = f"{cls.__module__}:{cls.__qualname__}"
    arguments = json.dumps({"hook": hook, "settings": dict(settings), "work_dir": str(work_dir), **faults})
    command = [sys.executable, "-c", TRAIN_SCRIPT, arguments]
    process = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = -signal.SIGKILL if "kill_at" in faults else 0
    assert process.returncode == expected, f"The process exited with code {process.returncode}:\n{process.stderr}"
    return [] if "kill_at" in faults else json.loads(process.stdout.splitlines()[-1])


def train_with_faults(
    hook: str,
    settings: dict[str, Any],
    work_dir: str,
    kill_at: int = 0,
    kill_delay: float = 0.0,
    full_at: int = 0,
    free_at: int = 0,
) -> None:
    """Train and print the warnings as JSON.

    Args:
        hook: Import string of the hook, `module:class`.
        settings: Settings of the hook.
        work_dir: Output directory.
        kill_at: Iteration at which the process is killed; 0 for never.
        kill_delay: Delay before the kill, in seconds.
        full_at: Iteration from which files cannot grow; 0 for never.
        free_at: Iteration from which files can grow again; 0 for never.
    """
    module, _, name = hook.partition(":")
    cls = getattr(importlib.import_module(module), name)
    # A short pause between attempts to write, so that the retry after the full disk happens during the training.
    retrying_cls = type(name, (cls,), {"pause": 0.05})
    recorder = retrying_cls({**settings, "interval": 1}, name=cls({**settings}).name)
    hooks = [recorder, SaveCheckpoint(), KillProcess(kill_at, kill_delay), LimitFileSize(full_at, free_at)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        fake_training(hooks, batches=5, losses=float, scores=get_scores, work_dir=work_dir)
    print(json.dumps([str(warning.message) for warning in caught if issubclass(warning.category, HookWarning)]))  # noqa: T201


class SaveCheckpoint(CheckpointWriter):
    """Write a checkpoint at one iteration."""

    def after_train_iter(self, run: Run) -> None:
        """Request the checkpoint."""
        if run.iters_done == CHECKPOINT_AT:
            run.request_save(saver=self)


class KillProcess(Hook):
    """Kill the process without cleanup, as a machine failure does.

    Args:
        at: Iteration; 0 for never.
        delay: Delay before the kill, in seconds.
    """

    priority = 1000

    def __init__(self, at: int, delay: float) -> None:
        super().__init__()
        self.at, self.delay = at, delay

    def before_train_iter(self, run: Run) -> None:
        """Kill the process at the configured iteration."""
        if self.at and run.iters_done == self.at:
            time.sleep(self.delay)
            os.kill(os.getpid(), signal.SIGKILL)


class LimitFileSize(Hook):
    """Limit the size of files for some iterations, which has the effect of a full disk.

    Args:
        begin: First iteration with the limit; 0 for never.
        end: Iteration that removes the limit; 0 for never.
    """

    def __init__(self, begin: int, end: int) -> None:
        super().__init__()
        self.begin, self.end = begin, end

    def before_train_iter(self, run: Run) -> None:
        """Set or remove the limit."""
        if run.iters_done == self.begin and self.begin:
            time.sleep(1.0)
            assert run.work_dir is not None
            logs = run.work_dir.directory("logs")
            sizes = [path.stat().st_size for path in logs.rglob("*") if path.is_file()]
            _set_file_size_limit(max(sizes) + 20)
        elif run.iters_done == self.end and self.end:
            time.sleep(1.0)
            _set_file_size_limit(resource.RLIM_INFINITY)


def _set_file_size_limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
