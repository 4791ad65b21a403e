"""Trainings with a hook that writes to a backend, and with faults in a separate process: SIGKILL, and a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus._run.run import Run
from hookbus._utils.imports import import_string
from hookbus._utils.system import limit_file_size
from hookbus.errors import HookWarning
from hookbus.hook import Hook
from hookbus.testing.training import CheckpointWriter, collect_warnings, fake_training

Record = tuple[str, int, float]

KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that ends a process at once. On Windows, `os.kill` ends the process for any signal."""
KILLED_EXIT_CODE = -KILL_SIGNAL if os.name == "posix" else int(KILL_SIGNAL)


@dataclass(frozen=True)
class WriterTestCase:
    """A hook that writes to a backend, and a function that reads back the records.

    Attributes:
        cls: Hook class, importable by its name, with a setting `interval`.
        read: Function of the work directory that returns the records in the order of the backend: (name, step, value).
        settings: Required settings of the hook, JSON-compatible.
        backend_name: Function that returns the name that the backend stores for a name.
        writes_own_files: Whether this process appends the records to files, so that a full disk can be simulated.
    """

    cls: type[Hook]
    read: Callable[[Path], list[Record]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    backend_name: Callable[[str], str] = str
    writes_own_files: bool = True

    def create_hook(self, **settings: Any) -> Hook:
        """Create the hook with `interval=1`.

        Args:
            settings: Additional settings.
        """
        return self.cls({**self.settings, "interval": 1, **settings})

    def read_curves(self, work_dir: Path) -> dict[str, list[tuple[int, float]]]:
        """Return (step, value) pairs by name in the order of the backend.

        Args:
            work_dir: Work directory of the run.
        """
        curves: dict[str, list[tuple[int, float]]] = {}
        for name, step, value in self.read(work_dir):
            curves.setdefault(name, []).append((step, float(value)))
        return curves


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


@contextmanager
def forbid_warnings() -> Iterator[None]:
    """Context manager that converts warnings of hookbus to errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookWarning)
        yield


def train(hooks: Iterable[Hook], work_dir: Path, **changes: Any) -> None:
    """Run a training of which a hook with `interval=1` records `EXPECTED`, unless options change."""
    fake_training(hooks, work_dir=work_dir, **{"batches": 5, "losses": float, "scores": get_scores, **changes})


def check_training(
    test_case: WriterTestCase,
    work_dir: Path,
    expected: Mapping[str, Any] = EXPECTED,
    more_hooks: Iterable[Hook] = (),
    **changes: Any,
) -> None:
    """Train without a warning, and check the records."""
    with forbid_warnings():
        train([test_case.create_hook(), *more_hooks], work_dir, **changes)
    check_curves(test_case, work_dir, expected)


def check_curves(test_case: WriterTestCase, work_dir: Path, expected: Mapping[str, Any] = EXPECTED) -> None:
    """Check that the curves of the backend equal the expected curves."""
    curves = test_case.read_curves(work_dir)
    names = set(curves) ^ set(expected)
    wrong = {name: curves[name] for name in expected if name in curves and repr(curves[name]) != repr(expected[name])}
    assert not names, f"{len(names)} names are missing or unexpected: {sorted(names)[:5]}"
    assert not wrong, f"{len(wrong)} curves differ: {dict(list(wrong.items())[:3])}"


def run_with_faults(cls: type[Hook], settings: Mapping[str, Any], work_dir: Path, **faults: Any) -> list[str]:
    """Train in a separate process, with a checkpoint at iteration 4.

    Returns:
        Warnings of the training; empty if the process was killed.
    """
    hook = f"{cls.__module__}:{cls.__qualname__}"
    arguments = json.dumps({"hook": hook, "settings": dict(settings), "work_dir": str(work_dir), **faults})
    command = [sys.executable, "-c", TRAIN_SCRIPT, arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    process = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    expected = KILLED_EXIT_CODE if "kill_at" in faults else 0
    assert process.returncode == expected, f"The process exited with code {process.returncode}:\n{process.stderr}"
    return [] if "kill_at" in faults else json.loads(process.stdout.splitlines()[-1])


def train_with_faults(hook: str, settings: dict[str, Any], work_dir: str, **faults: Any) -> None:
    """Train and print the warnings as JSON."""
    cls: Any = import_string(hook)
    # A short pause between attempts to write, so that the retry after the full disk happens during the training.
    retrying_cls = type(cls.__name__, (cls,), {"pause": 0.05})
    recorder = retrying_cls({**settings, "interval": 1}, name=cls({**settings}).name)
    print(json.dumps(collect_warnings(lambda: train([recorder, InjectFaults(**faults)], Path(work_dir)))))  # noqa: T201


class InjectFaults(CheckpointWriter):
    """Write a checkpoint at iteration 4, kill the process as a machine failure does, or fill the disk.

    Args:
        kill_at: Iteration at which the process is killed; 0 for never.
        kill_delay: Delay before the kill, in seconds.
        full_at: Iteration from which files cannot grow; 0 for never.
        free_at: Iteration from which files can grow again; 0 for never.
    """

    priority = 1000

    def __init__(self, kill_at: int = 0, kill_delay: float = 0.0, full_at: int = 0, free_at: int = 0) -> None:
        super().__init__()
        self.kill_at, self.kill_delay, self.full_at, self.free_at = kill_at, kill_delay, full_at, free_at

    def before_train_iter(self, run: Run) -> None:
        """Kill the process, or set or remove the limit on the size of files."""
        at = run.iters_done
        if at and at == self.kill_at:
            time.sleep(self.kill_delay)
            os.kill(os.getpid(), KILL_SIGNAL)
        if at and at in (self.full_at, self.free_at):
            time.sleep(1.0)
            assert run.work_dir is not None
            files = [path for path in run.work_dir.directory("logs").rglob("*") if path.is_file()]
            is_full = at == self.full_at
            limit_file_size(max(path.stat().st_size for path in files) + 20 if is_full else None)

    def after_train_iter(self, run: Run) -> None:
        """Request the checkpoint."""
        if run.iters_done == CHECKPOINT_AT:
            run.request_save(saver=self)
