"""Processes of a campaign: a fork of the campaign, or the processes of torchrun."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.campaigns.training import Case, main

HUNG_SECONDS = 180
"""Time limit of a training."""
TERMINATION_SECONDS = 5
"""Time for a rank to end after SIGTERM."""

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
        redirect_output(directory)
        prepare()
        main(case, directory)


class ForkedRanks:
    """A training in one fork of this process per rank. If a rank fails, the others are ended, as torchrun does.

    Args:
        case: Settings of the training.
        directory: Directory of the training.
        prepare: Function that each child calls with its rank after fsync was disabled.
    """

    def __init__(self, case: Case, directory: Path, prepare: Callable[[int], object] = lambda rank: None) -> None:
        context, port = multiprocessing.get_context("fork"), find_free_port()
        arguments = [(case, directory, prepare, rank, port) for rank in range(case.ranks)]
        self._processes = [context.Process(target=self._train, args=values) for values in arguments]
        for process in self._processes:
            process.start()
            os.setpgid(process.pid, self._processes[0].pid)
        self.pid: int = self._processes[0].pid

    def wait(self, seconds: float) -> int | None:
        """Return the exit code of a rank that failed, 0 if none did, None if the training takes longer."""
        end = time.monotonic() + seconds
        while active := [process for process in self._processes if process.exitcode is None]:
            if any(process.exitcode for process in self._processes):
                self._end(active)
            elif not wait([process.sentinel for process in active], max(end - time.monotonic(), 0)):
                return None
        return next((process.exitcode for process in self._processes if process.exitcode), 0)

    @staticmethod
    def _end(processes: Iterable[BaseProcess]) -> None:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(TERMINATION_SECONDS)
            process.kill()
            process.join()

    @staticmethod
    def _train(case: Case, directory: Path, prepare: Callable[[int], object], rank: int, port: int) -> None:
        redirect_output(directory)
        world = {"WORLD_SIZE": case.ranks, "LOCAL_WORLD_SIZE": case.ranks, "RANK": rank, "LOCAL_RANK": rank}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {name: str(value) for name, value in world.items()}
        disable_fsync()
        prepare(rank)
        main(case, directory)


def redirect_output(directory: Path) -> None:
    """Append the output of this process to a file."""
    with open(directory / "output.txt", "ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def find_free_port() -> int:
    """Return a TCP port that is free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


Training = ForkedTraining | ForkedRanks | LaunchedTraining


def start(case: Case, directory: Path) -> Training:
    """Start a training."""
    if case.launched:
        return LaunchedTraining(case, directory)
    return ForkedTraining(case, directory) if case.ranks == 1 else ForkedRanks(case, directory)


def finish(training: Training) -> int | None:
    """Return the exit code of a training, None if it did not end within the time limit."""
    code = training.wait(HUNG_SECONDS)
    if code is None:
        os.killpg(training.pid, signal.SIGKILL)
        training.wait(HUNG_SECONDS)
    return code


def interrupt(training: Training, number: signal.Signals, delay: float, *, group: bool) -> bool:
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
