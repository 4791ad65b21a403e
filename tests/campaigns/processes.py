"""Processes of a campaign: a fork of the campaign, or the processes of torchrun."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tests.campaigns.training import Case, main

HUNG_SECONDS = 90
"""Time limit of a training."""

TORCHRUN = (
    "-m", "torch.distributed.run", "--standalone", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1", "--nproc-per-node"
)  # fmt: skip


class ForkedTraining:
    """A training in a fork of this process, which has imported everything.

    Args:
        case: Settings of the training.
        directory: Directory of the training.
        prepare: Function that the child calls first; by default it disables fsync, which only matters after a power
            failure.
    """

    def __init__(self, case: Case, directory: Path, prepare: Callable[[], object] | None = None) -> None:
        self._process = multiprocessing.get_context("fork").Process(
            target=self._train, args=(case, directory, prepare or disable_fsync)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        os.setpgid(self.pid, self.pid)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, None if the training takes longer."""
        self._process.join(seconds)
        return self._process.exitcode

    @staticmethod
    def _train(case: Case, directory: Path, prepare: Callable[[], object]) -> None:
        with open(directory / "output.txt", "ab") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        prepare()
        main(case, directory)


def disable_fsync() -> None:
    """Let fsync do nothing."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]


class LaunchedTraining:
    """A training in processes that torchrun starts, once its first iteration is complete.

    Args:
        case: Settings of the training.
        directory: Directory of the training.
        environment: Additional environment variables.
    """

    def __init__(self, case: Case, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        target = ["-m", "tests.campaigns.training", json.dumps(asdict(case)), str(directory)]
        with open(directory / "output.txt", "ab") as output:
            command = [sys.executable, *TORCHRUN, str(case.ranks), *target]
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env={**os.environ, **(environment or {})}
            )
        self.pid = self._process.pid
        self._wait_for_progress(directory / "losses-0.txt")

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, None if the training takes longer."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    def _wait_for_progress(self, losses: Path) -> None:
        size = losses.stat().st_size if losses.exists() else 0
        end = time.monotonic() + HUNG_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if losses.exists() and losses.stat().st_size > size:
                return
            time.sleep(0.02)


def start(case: Case, directory: Path) -> ForkedTraining | LaunchedTraining:
    """Start a training."""
    return ForkedTraining(case, directory) if case.ranks == 1 else LaunchedTraining(case, directory)


def finish(training: ForkedTraining | LaunchedTraining) -> int | None:
    """Return the exit code of a training, None if it did not end within the time limit."""
    code = training.wait(HUNG_SECONDS)
    if code is None:
        os.killpg(training.pid, signal.SIGKILL)
        training.wait(HUNG_SECONDS)
    return code


def interrupt(
    training: ForkedTraining | LaunchedTraining, number: signal.Signals, delay: float, *, group: bool
) -> bool:
    """Send a signal after a delay.

    Args:
        training: The training.
        number: The signal.
        delay: Delay in seconds.
        group: Whether to send the signal to the loader workers and all ranks as well.

    Returns:
        Whether the training was still active.
    """
    if training.wait(delay) is not None:
        return False
    (os.killpg if group else os.kill)(training.pid, number)
    return True
