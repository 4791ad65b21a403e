"""Launch of scripts and commands on several ranks, with the gloo backend and a time limit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.distributed.forked_ranks import ForkServers, Job

WORKER = Path(__file__).parent / "worker.py"

CONNECTION_FAILURE = "Gloo connectFullMesh failed"
"""Error of gloo if the ranks could not connect to each other, which happens rarely on a loaded machine."""

TIME_LIMIT_SECONDS = 60
"""Default time limit of a launch. Each worker dumps its stack 5 seconds before the limit."""

TORCHRUN_SECONDS = 20
"""Time that torchrun itself may take on a loaded machine until the workers, and their time limit, start."""


@dataclass(frozen=True)
class LaunchResult:
    """Result of a completed launch.

    Attributes:
        returncode: Exit code of torchrun, or the one it would have.
        agent_output: Output of torchrun itself, empty without torchrun.
        log_dir: Directory with the output of the workers.
        reports: Values passed to `report(value)`, by rank.
        exit_codes: Exit codes of the ranks, negative for a signal. Empty with torchrun.
    """

    returncode: int
    agent_output: str
    log_dir: Path
    reports: dict[int, Any]
    exit_codes: list[int]

    def output(self, rank: int, attempt: int = 0) -> str:
        """Return the standard output of a rank, followed by its standard error."""
        files = sorted(self.log_dir.glob(f"*/attempt_{attempt}/{rank}/std*.log"), reverse=True)
        return "".join(file.read_text(errors="replace") for file in files)

    @property
    def full_output(self) -> str:
        """Exit code and all output, for the messages of failed assertions."""
        files = sorted(self.log_dir.glob("*/attempt_*/*/std*.log"))
        outputs = [f"--- {file.relative_to(self.log_dir)}\n{file.read_text(errors='replace')}" for file in files]
        return "\n".join([f"the launch returned {self.returncode}", *outputs, "--- torchrun", self.agent_output])


Launch = Callable[..., LaunchResult]


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[ForkServers]:
    """Processes that the ranks are forked from."""
    servers = ForkServers()
    yield servers
    servers.close()


@pytest.fixture
def launch(tmp_path: Path, fork_servers: ForkServers) -> Launch:
    """Function that runs a script or module in multiple processes, see `build_launcher`."""
    return build_launcher(tmp_path, fork_servers)


@pytest.fixture(scope="module")
def module_launch(tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers) -> Launch:
    """Module-scoped `launch`, for tests that share the result of one launch."""
    return build_launcher(tmp_path_factory.mktemp("launches"), fork_servers)


def build_launcher(directory: Path, servers: ForkServers) -> Launch:
    """Return a function that runs a script or a module in multiple processes.

    `launch(script, *arguments)` runs the text of a script; `launch("-m", "hookbus", "train", ...)` runs a module.
    The ranks of a script are forks, without torchrun, unless `torchrun`, `hosts` or `options` are given.
    A launch that must succeed is repeated once if gloo could not connect the ranks, which have not communicated then.
    Keyword arguments: `ranks` (default 2); `torchrun` (default False), whether torchrun starts the ranks; `hosts`
    (default 1), the number of torchrun processes that the ranks are divided among; `options` of torchrun;
    `environment`; `succeeds` (default True), whether exit code 0 is required; `time_limit` in seconds.
    """
    number = iter(range(100))

    def launch(target: str, *arguments: str, succeeds: bool = True, **options: Any) -> LaunchResult:
        result = launch_once(target, *arguments, **options)
        if succeeds and result.returncode != 0 and CONNECTION_FAILURE in result.full_output:
            result = launch_once(target, *arguments, **options)
        assert not succeeds or result.returncode == 0, result.full_output
        return result

    def launch_once(
        target: str,
        *arguments: str,
        ranks: int = 2,
        torchrun: bool = False,
        hosts: int = 1,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        time_limit: int = TIME_LIMIT_SECONDS,
    ) -> LaunchResult:
        launch_dir = directory / f"launch-{next(number)}"
        report_dir, log_dir = launch_dir / "reports", launch_dir / "logs"
        report_dir.mkdir(parents=True)
        is_forked = target != "-m" and hosts == 1 and not options and not torchrun
        if target != "-m":
            script = launch_dir / "script.py"
            script.write_text(dedent(target))
            target = str(script)
        # The worker exits first, so that its stack is in the log before it is terminated.
        command = [str(time_limit - 5), target, *arguments]
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "REPORT_DIR": str(report_dir),
            "PYTHONPATH": os.pathsep.join([str(WORKER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        variables |= environment or {}
        if is_forked:
            job = Job(command, str(directory), variables, str(log_dir / "forks" / "attempt_0"))
            exit_codes = servers.run(job, ranks, time_limit)
            completed = subprocess.CompletedProcess(command, int(any(exit_codes)), "")
        else:
            exit_codes = []
            agent = _torchrun_command(ranks, hosts, log_dir, options)
            completed = _run(
                [[*agent, str(WORKER), *command]] * hosts, directory, variables, time_limit + TORCHRUN_SECONDS
            )
        reports = {int(file.stem): json.loads(file.read_text()) for file in report_dir.glob("*.json")}
        return LaunchResult(completed.returncode, completed.stdout, log_dir, reports, exit_codes)

    return launch


def _torchrun_command(ranks: int, hosts: int, log_dir: Path, options: Sequence[str]) -> list[str]:
    rendezvous = ["--standalone"] if hosts == 1 else _rendezvous_options(hosts)
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(ranks // hosts)]
    return [*torchrun, "--log-dir", str(log_dir), "--redirects", "3", *options]


def _rendezvous_options(hosts: int) -> list[str]:
    """Return the torchrun options for a rendezvous of simulated hosts on a free local port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    return ["--nnodes", str(hosts), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", "127.0.0.1"]


def _run(
    commands: Sequence[Sequence[str]], directory: Path, variables: Mapping[str, str], time_limit: int
) -> subprocess.CompletedProcess[str]:
    """Run commands in parallel with a time limit, and return their joint output and largest exit code."""
    processes = [
        subprocess.Popen(
            command, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]

    def terminate_all() -> None:
        # terminate() and not kill(): on SIGTERM torchrun terminates its workers, on SIGKILL they are orphaned.
        for process in processes:
            process.terminate()

    watchdog = threading.Timer(time_limit, terminate_all)
    watchdog.start()
    try:
        outputs = [process.communicate(timeout=time_limit + 10)[0] for process in processes]
    finally:
        watchdog.cancel()
        for process in processes:
            process.kill()
    returncode = max(abs(process.returncode) for process in processes)
    return subprocess.CompletedProcess(commands, returncode, "".join(outputs))
