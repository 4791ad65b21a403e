"""Kills and errors at file operations, by a preloaded library that the compiler of the system builds."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("io_faults.c")
ACTIONS = {"error": 0, "kill": 1, "short write": 2}
COUNT = -1
REPORT = "operations.txt"
"""File in the directory of a training with the operations, or with those that failed."""
COPIES = f"{REPORT}.files"
"""Directory with copies of the files of a training before its first error."""
NO_COMPILER = "this campaign compiles a C library, and needs cc or gcc"


@dataclass(frozen=True)
class Fault:
    """What happens at a file operation of a training.

    Attributes:
        at: Number of the operation, from 0; `COUNT` only counts. An error occurs at the next operation at which a file
            system reports it.
        action: A key of `ACTIONS`.
        number: Error number.
        lasting: Whether all later operations fail as well at which a file system reports the error.
        reads: Whether opening a file for reading is an operation.
    """

    at: int = COUNT
    action: str = "kill"
    number: int = 0
    lasting: bool = False
    reads: bool = False

    def __str__(self) -> str:
        name = errno.errorcode.get(self.number, "")
        return f"{self.action} {name} at operation {self.at}{' and after' if self.lasting else ''}"

    def get_settings(self, directory: Path) -> list[str]:
        """Return the arguments of `io_faults_arm` for a training in a directory."""
        numbers = (self.at, ACTIONS[self.action], self.number, self.lasting, self.reads)
        return [str(directory / "run"), str(directory / REPORT), *(str(int(value)) for value in numbers)]

    def arm(self, directory: Path) -> None:
        """Activate the fault in this process."""
        prefix, report, *numbers = self.get_settings(directory)
        ctypes.CDLL(None).io_faults_arm(
            prefix.encode(), report.encode(), ctypes.c_long(int(numbers[0])), *map(int, numbers[1:])
        )

    def get_environment(self, directory: Path, rank: int) -> dict[str, str]:
        """Return the variables that activate the fault in one rank."""
        return {"IO_FAULTS": "\n".join(self.get_settings(directory)), "IO_FAULTS_RANK": str(rank)}


def find_compiler() -> str | None:
    """Return the C compiler, None if there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def restart_with_library() -> None:
    """Replace this process by the same command with the library preloaded, unless it is loaded."""
    if hasattr(ctypes.CDLL(None), "io_faults_arm"):
        return
    compiler = find_compiler()
    if compiler is None:
        sys.exit(NO_COMPILER)
    library = Path(tempfile.mkdtemp(prefix="io-faults-")) / "io_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
