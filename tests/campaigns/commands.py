"""The command line in a fork of the campaign, with limits."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import sklearn.datasets  # noqa: F401 - so that the forks need not import it

from hookbus._cli.app import main

LIMIT_SECONDS = 20
"""Processor time of a command."""
HUNG_SECONDS = 120
"""Time after which a command waits for something that never happens."""
LIMIT_BYTES = 6 * 2**30
MAX_LINES = 60


@dataclass(frozen=True)
class Done:
    """Exit code of a command, None if it did not end, and its output."""

    code: int | None
    output: str

    def check(self, *codes: int) -> list[str]:
        """Return what is wrong with the end of a command that may have one of the exit codes."""
        bad = [] if self.code in codes else [f"exit code {self.code}"]
        bad += ["traceback"] if "Traceback (most recent" in self.output else []
        lines = len(self.output.splitlines())
        bad += [f"{lines} lines"] if self.code != 0 and lines > MAX_LINES else []
        return bad + (["escape sequence"] if "\x1b]" in self.output else [])


def run_command(directory: Path, *arguments: str) -> Done:
    """Run `hookbus` with arguments in a directory."""
    output = directory / "output.txt"
    process = multiprocessing.get_context("fork").Process(target=_run, args=(directory, output, arguments))
    process.start()
    process.join(HUNG_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        return Done(None, "")
    return Done(process.exitcode, output.read_text(errors="replace"))


def _run(directory: Path, output: Path, arguments: tuple[str, ...]) -> None:
    os.chdir(directory)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["hookbus", *arguments]
    main()
