"""Launch of scripts and commands with torchrun, the gloo backend and a time limit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

WORKER = Path(__file__).parent / "worker.py"

CONNECTION_FAILURE = "Gloo connectFullMesh failed"
"""Error of gloo if the ranks could not connect to each other, which happens rarely on a loaded machine."""

TIME_LIMIT_SECONDS = 60
"""Default time limit of a launch. Each worker dumps its stack 5 seconds before the limit."""


@dataclass(frozen=True)
class LaunchResult:
    """Result of a completed launch.

    Attributes:
        returncode: Exit code of torchrun.
        agent_output: Output of torchrun itself.
        log_dir: Directory with the output of the workers.
        reports: Values passed to `report(value)`, by rank.
    """

    returncode: int
    agent_output: str
    log_dir: Path
    reports: dict[int, Any]

    def output(self, rank: int, attempt: int = 0) -> str:
        """Return the standard output of a rank, followed by its standard error."""
        files = sorted(self.log_dir.glob(f"*/attempt_{attempt}/{rank}/std*.log"), reverse=True)
        return "".join(file.read_text(errors="replace") for file in files)

    @property
    def full_output(self) -> str:
        """Output of torchrun and of all workers, for the messages of failed assertions."""
        files = sorted(self.log_dir.glob("*/attempt_*/*/std*.log"))
        outputs = [f"--- {file.relative_to(self.log_dir)}\n{file.read_text(errors='replace')}" for file in files]
        return "\n".join([f"torchrun returned {self.returncode}", *outputs, "--- torchrun", self.agent_output])


Launch = Callable[..., LaunchResult]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Function that runs a script or module in multiple processes, see `build_launcher`."""
    return build_launcher(tmp_path)


@pytest.fixture(scope="module")
def module_launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Module-scoped `launch`, for tests that share the result of one launch."""
    return build_launcher(tmp_path_factory.mktemp("launches"))


def build_launcher(directory: Path) -> Launch:
    """Return a function that runs a script or a module in multiple processes.

    `launch(script, *arguments)` runs the text of a script; `launch("-m", "hookbus", "train", ...)` runs a module.
    A launch that must succeed is repeated once if gloo could not connect the ranks, which have not communicated then.
    Keyword arguments: `ranks` (default 2); `hosts` (default 1), the number of torchrun processes that the ranks are
    divided among; `options` of torchrun; `environment`; `succeeds` (default True), whether exit code 0 is required;
    `time_limit` in seconds.
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
        hosts: int = 1,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        time_limit: int = TIME_LIMIT_SECONDS,
    ) -> LaunchResult:
        launch_dir = directory / f"launch-{next(number)}"
        report_dir, log_dir = launch_dir / "reports", launch_dir / "logs"
        report_dir.mkdir(parents=True)
        if target != "-m":
            script = launch_dir / "script.py"
            script.write_text(dedent(target))
            target = str(script)
        rendezvous = ["--standalone"] if hosts == 1 else _rendezvous_options(hosts)
        torchrun = ["-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(ranks // hosts)]
        torchrun += ["--log-dir", str(log_dir), "--redirects", "3", *options]
        # The worker exits first, so that its stack is in the log before torchrun terminates it.
        command = [sys.executable, *torchrun, str(WORKER), str(time_limit - 5), target, *arguments]
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "REPORT_DIR": str(report_dir),
            "PYTHONPATH": str(WORKER.parent),
        }
        variables |= environment or {}
        completed = _run([command] * hosts, directory, variables, time_limit)
        reports = {int(file.stem): json.loads(file.read_text()) for file in report_dir.glob("*.json")}
        return LaunchResult(completed.returncode, completed.stdout, log_dir, reports)

    return launch


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
