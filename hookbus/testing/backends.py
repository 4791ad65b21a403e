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
Curve = list[tuple[int, float]]
"""(step, value) pairs of one name."""

MAX_LISTED = 5
"""Number of differences that a message lists."""

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
    compare_curves(expected, test_case.read_curves(work_dir))


def compare_curves(written: Mapping[str, Curve], read: Mapping[str, Curve]) -> None:
    """Check that the curves that a backend has read back are those that were written.

    Args:
        written: (step, value) pairs by name, in order.
        read: The same as the backend returns them.

    Raises:
        AssertionError: If they differ. The message lists name, step, written value and value read back.
    """
    unexpected = sorted(set(read) - set(written))
    differences = [text for name in written for text in _compare_curve(name, written[name], read.get(name))]
    differences += [f"{name!r}: wrote nothing, read back {_format_values(read[name])}" for name in unexpected]
    more = len(differences) - MAX_LISTED
    lines = [*differences[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])]
    assert not differences, "The backend reads back other records than were written:\n  " + "\n  ".join(lines)


def _compare_curve(name: str, written: Curve, read: Curve | None) -> Iterator[str]:
    """Yield the differences of one curve."""
    if read is None:
        values = _format_values(written)
        yield f"{name!r}: wrote {values}, read back nothing. If the backend stores another name, pass `backend_name`"
        return
    steps = dict.fromkeys(step for step, _ in (*written, *read))
    # As text, because NaN differs from itself.
    pairs = {step: [[repr(value) for at, value in curve if at == step] for curve in (written, read)] for step in steps}
    different = {step: pair for step, pair in pairs.items() if pair[0] != pair[1]}
    for step, (expected, actual) in different.items():
        yield f"{name!r}, step {step}: wrote {_join(expected)}, read back {_join(actual)}"
    if not different and [step for step, _ in written] != [step for step, _ in read]:
        yield f"{name!r}: wrote the steps {_join(s for s, _ in written)}, read back {_join(s for s, _ in read)}"


def _join(values: Iterable[object]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _format_values(curve: Curve) -> str:
    shown = _join(f"{value!r} at step {step}" for step, value in curve[:3])
    return shown if len(curve) <= 3 else f"{shown} and {len(curve) - 3} more"


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
