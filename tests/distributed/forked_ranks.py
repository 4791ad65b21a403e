"""Ranks that are forks of processes with finished imports, which take most of the time of a launch with torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from select import select

import torch.distributed as dist

SERVER = Path(__file__).parent / "fork_server.py"

MONITOR_SECONDS = 5
"""Time for the other ranks to end after one has failed, before they receive SIGTERM."""
TERMINATION_SECONDS = 30
"""Time for a rank to end after SIGTERM."""


@dataclass(frozen=True)
class Job:
    """Process to fork.

    Attributes:
        arguments: Command line of `worker.py`.
        directory: Current directory.
        variables: All environment variables. Those that are read during imports have no effect.
        outputs: Directory of the files `stdout.log` and `stderr.log`.
    """

    arguments: Sequence[str]
    directory: str
    variables: Mapping[str, str]
    outputs: str


class ForkServer:
    """Process that forks, see `fork_server.py`. It ends when its input is closed, also because the tests are killed.

    Attributes:
        exit_code: Exit code of the current process, None while it is active.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=variables,
            start_new_session=True,
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._jobs, self._answers = self._server.stdin, self._server.stdout
        self.exit_code: int | None = None
        self._pid = 0

    def start(self, job: Job) -> None:
        """Start a process."""
        self._jobs.write(f"{json.dumps(asdict(job))}\n".encode())
        self.exit_code = None

    def wait_for_start(self) -> None:
        """Wait for the start of the process, after the imports of the server, which no time limit includes."""
        self._pid = self._read()

    def fileno(self) -> int:
        """Return the descriptor that is readable once the process has ended."""
        return self._answers.fileno()

    def collect(self) -> None:
        """Read the exit code of the process that has ended."""
        self.exit_code = self._read()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def close(self) -> None:
        """End the server, also if another fork of the tests holds its input open."""
        self._server.kill()
        self._server.wait()
        self._jobs.close()
        self._answers.close()

    def _read(self) -> int:
        line = self._answers.readline()
        assert line, "the fork server ended: its error is in the captured standard error"
        return int(line)


class ForkServers:
    """Servers of a test session, one for each rank: the order of sets differs between ranks, as with torchrun."""

    def __init__(self) -> None:
        self._servers: list[ForkServer] = []

    def run(self, job: Job, ranks: int, time_limit: float) -> list[int]:
        """Run a process for each rank. If one fails, the others are ended, as torchrun does.

        The store of the process group is in this process, as it is in torchrun.

        Args:
            job: Description of the processes, without the variables of a rank.
            ranks: Number of processes.
            time_limit: Time limit in seconds.

        Returns:
            Exit codes of the ranks, negative for a signal.
        """
        while len(self._servers) < ranks:
            self._servers.append(ForkServer(job.variables))
        servers = self._servers[:ranks]
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank, server in enumerate(servers):
            server.start(_job_of_rank(job, rank, ranks, store.port))
        for server in servers:
            server.wait_for_start()
        try:
            _wait(servers, time_limit, until_failure=True)
            _wait(servers, MONITOR_SECONDS)
        finally:
            _end(servers)
        return [server.exit_code or 0 for server in servers]

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.close()


def _job_of_rank(job: Job, rank: int, ranks: int, port: int) -> Job:
    variables = {
        **job.variables,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    return Job(job.arguments, job.directory, variables, str(Path(job.outputs, str(rank))))


def _wait(servers: Sequence[ForkServer], seconds: float, *, until_failure: bool = False) -> None:
    """Wait until the processes have ended or one has failed."""
    end = time.monotonic() + seconds
    while active := _active(servers):
        if until_failure and any(server.exit_code for server in servers):
            return
        ended, _, _ = select(active, (), (), max(end - time.monotonic(), 0))
        if not ended:
            return
        for server in ended:
            server.collect()


def _end(servers: Sequence[ForkServer]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for server in _active(servers):
            server.signal(number)
        _wait(servers, TERMINATION_SECONDS)


def _active(servers: Sequence[ForkServer]) -> list[ForkServer]:
    return [server for server in servers if server.exit_code is None]
