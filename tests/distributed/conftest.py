"""Real processes: a script or a command under torchrun's own module, with gloo on this machine and a time limit."""

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

LIMIT = 60
"""Seconds after which a launch is ended; each worker shows before where it hangs."""


@dataclass(frozen=True)
class Launched:
    """What is left of a launch.

    Attributes:
        returncode: of torchrun.
        agent: what torchrun itself printed.
        logs: where the output of the workers is.
        answers: what `answer(value)` left, by rank.
    """

    returncode: int
    agent: str
    logs: Path
    answers: dict[int, Any]

    def output(self, rank: int, attempt: int = 0) -> str:
        """What a rank printed, standard output first."""
        files = sorted(self.logs.glob(f"*/attempt_{attempt}/{rank}/std*.log"), reverse=True)
        return "".join(file.read_text(errors="replace") for file in files)

    @property
    def story(self) -> str:
        """Everything that was printed, for messages of failed tests."""
        files = sorted(self.logs.glob("*/attempt_*/*/std*.log"))
        told = [f"--- {file.relative_to(self.logs)}\n{file.read_text(errors='replace')}" for file in files]
        return "\n".join([f"torchrun returned {self.returncode}", *told, "--- torchrun", self.agent])


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run a script, or a module, in several processes: see `launcher`."""
    return launcher(tmp_path)


@pytest.fixture(scope="module")
def launch_once(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The same for several tests, which look at what one launch has left."""
    return launcher(tmp_path_factory.mktemp("launches"))


def launcher(directory: Path) -> Launch:
    """A function that runs a script, or a module, in several processes.

    `launch(script, *arguments)` runs the text of a script, `launch("-m", "hookbus", "train", ...)` a module. More
    settings: `ranks` (2), `hosts` (1) over which they are spread, each with a torchrun of its own, `options` for
    torchrun, `environment`, `succeeds` (True) for a launch that has to return 0.
    """
    number = iter(range(100))

    def launch(
        what: str,
        *arguments: str,
        ranks: int = 2,
        hosts: int = 1,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        succeeds: bool = True,
        limit: int = LIMIT,
    ) -> Launched:
        place = directory / f"launch-{next(number)}"
        answers, logs = place / "answers", place / "logs"
        answers.mkdir(parents=True)
        if what != "-m":
            script = place / "script.py"
            script.write_text(dedent(what))
            what = str(script)
        meeting = ["--standalone"] if hosts == 1 else _meeting(hosts)
        torchrun = ["-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(ranks // hosts)]
        torchrun += ["--log-dir", str(logs), "--redirects", "3", *options]
        command = [sys.executable, *torchrun, str(WORKER), str(limit - 5), what, *arguments]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "ANSWERS": str(answers), "PYTHONPATH": str(WORKER.parent)}
        variables |= environment or {}
        done = _run([command] * hosts, directory, variables, limit)
        found = {int(file.stem): json.loads(file.read_text()) for file in answers.glob("*.json")}
        launched = Launched(done.returncode, done.stdout, logs, found)
        if succeeds:
            assert launched.returncode == 0, launched.story
        return launched

    return launch


def _meeting(hosts: int) -> list[str]:
    """How the torchruns of several hosts find each other, all of them on this one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    return ["--nnodes", str(hosts), "--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--local-addr", "127.0.0.1"]


def _run(
    commands: Sequence[Sequence[str]], directory: Path, variables: Mapping[str, str], limit: int
) -> subprocess.CompletedProcess[str]:
    """Commands side by side, with a time limit; what they printed is one text, and the worst of them counts."""
    processes = [
        subprocess.Popen(
            each, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for each in commands
    ]
    watch = threading.Timer(limit, lambda: [each.terminate() for each in processes])  # torchrun ends its workers
    watch.start()
    try:
        printed = [each.communicate(timeout=limit + 10)[0] for each in processes]
    finally:
        watch.cancel()
        for each in processes:
            each.kill()
    return subprocess.CompletedProcess(commands, max(abs(each.returncode) for each in processes), "".join(printed))
