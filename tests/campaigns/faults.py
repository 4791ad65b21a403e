"""Errors of file operations: a full disk, a broken disk, and writes that end early."""

from __future__ import annotations

import builtins
import errno
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookbus.checkpoint.atomic_files import list_newest_first, read_sidecar, verify
from hookbus.errors import CheckpointError

REAL_FSYNC = os.fsync
OPERATIONS = ("fsync", "replace", "rename", "link", "unlink")


@dataclass(frozen=True)
class Fault:
    """An error of the file operations of a run.

    Attributes:
        at: Number of the operation, from 0.
        number: Error number.
        lasting: Whether all later operations fail as well.
    """

    at: int
    number: int
    lasting: bool

    def __str__(self) -> str:
        return f"{errno.errorcode[self.number]} at operation {self.at}{' and after' if self.lasting else ''}"


class FaultyFiles:
    """File operations below a directory, except those of logs, that fail as specified.

    Args:
        directory: Directory of a training. `fault.json` in it will contain the newest generation before the fault,
            and `operations.txt` the number of operations.
        fault: The fault; None to count the operations only.
    """

    def __init__(self, directory: Path, fault: Fault | None) -> None:
        self._directory, self._fault = directory, fault
        self._number = itertools.count()
        self._open = builtins.open

    def install(self) -> None:
        """Replace the operations in this process."""
        for name in OPERATIONS:
            setattr(os, name, self._wrap(getattr(os, name)))
        builtins.open = self._open_faulty  # type: ignore[assignment]

    def check(self, path: Path) -> None:
        """Raise the error if it is due."""
        if self._directory / "run" not in path.parents or "logs" in path.parts:
            return
        number = next(self._number)
        fault = self._fault
        if fault is None:
            (self._directory / "operations.txt").write_text(str(number + 1))
        elif number == fault.at or (fault.lasting and number > fault.at):
            if number == fault.at:
                self._write_newest()
            raise OSError(fault.number, os.strerror(fault.number), str(path))

    def _write_newest(self) -> None:
        with self._open(self._directory / "fault.json", "w") as file:
            json.dump(find_newest_generation(self._directory), file)

    def _wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def checked(argument: Any, *more: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else argument
            self.check(Path(path))
            if operation is REAL_FSYNC:  # it only matters after a power failure
                return None
            return operation(argument, *more, **options)

        return checked

    def _open_faulty(self, path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if "w" not in mode or not isinstance(path, (str, os.PathLike)):
            return self._open(path, mode, *args, **options)
        self.check(Path(path))
        file = self._open(path, mode, *args, **options)
        return _FaultyFile(file, lambda: self.check(Path(path))) if "b" in mode else file


class _FaultyFile:
    """File of which half of a write succeeds before the error."""

    def __init__(self, file: Any, check: Callable[[], None]) -> None:
        self._file, self._check = file, check

    def write(self, data: Any) -> int:
        data = bytes(data)
        try:
            self._check()
        except OSError:
            self._file.write(data[: len(data) // 2])
            raise
        return int(self._file.write(data))

    def __enter__(self) -> _FaultyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def find_newest_generation(directory: Path) -> int:
    """Return the generation of the newest valid checkpoint of a training, 0 if there is none."""
    for path in list_newest_first(directory / "run" / "checkpoints"):
        try:
            return verify(path).generation
        except CheckpointError:
            assert read_sidecar(path) is not None
    return 0
