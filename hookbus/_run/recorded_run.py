"""The run that a work directory contains, according to all files that identify it.

No single file is decisive: `status.json` may have been deleted or damaged, and a copy of a directory may lack its
hidden files. Checkpoints identify their run by their sidecars, and `config.yaml` by its first line.

`.made` is the list of the files and directories that runs have created in a work directory. Each line is a JSON string
with a path relative to the directory, written and fsynced before the path is created. The same paths are stored in
`status.json`; an output is listed if it is in either file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hookbus._run.directory_lock import LOCK, describe_foreign_file, find_lock_problem, has_lock_file
from hookbus._run.status import OUTPUTS_KEY, STATUS, StatusFile
from hookbus._utils.files import get_reason, open_for_writing, open_regular_file, read_regular_file
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.checkpoint.file_system import fsync, fsync_file
from hookbus.checkpoint.sidecars import read_sidecar

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"

CONFIG_HEADER = "# run: {}\n"
"""First line of `config.yaml`, with the ID of the run."""
HEADER_PATTERN = re.compile(rb"# run: ([0-9A-Za-z]{1,64})\r?\n")
MAX_HEADER_SIZE = 80

OUTPUTS = ".made"
HEADER = '"hookbus: files that runs have created in this directory"'
"""First line. A list of an earlier version begins with an output."""

MAX_SIZE = 16 << 20


@dataclass(frozen=True)
class RecordedRun:
    """Run that a work directory contains.

    Attributes:
        run: ID of the run; "" if it is unknown, or there is none.
        is_training: Whether the directory contains a training run, whose ID may be unknown.
        status: `status.json`.
        outputs: Registered outputs of all runs in the directory, including validations and tests.
        problem: Error of a foreign file that has a name which a run needs; "" if there is none.
    """

    run: str = ""
    is_training: bool = False
    status: StatusFile = field(default_factory=StatusFile)
    outputs: frozenset[str] = frozenset()
    problem: str = ""

    @classmethod
    def read(cls, directory: Path) -> RecordedRun:
        """Identify the run in a directory, which may be missing. No file is modified."""
        status = StatusFile.read(directory)
        outputs = frozenset(read_outputs(directory) | parse_names(status.fields.get(OUTPUTS_KEY, ())))
        run, runs = status.run, set[str]()
        if not run:
            runs, header = _read_sidecar_runs(directory), ""
            with suppress(OSError):
                header = _read_config_run(directory)
            owner = header if CONFIG in outputs or header in runs else ""
            run = owner or (runs.pop() if len(runs) == 1 else "")
        contains_run = bool(run or runs)
        problem = find_lock_problem(directory) or find_list_problem(
            directory, contains_run=contains_run or has_lock_file(directory)
        )
        if not problem and status.problem and not status.is_damaged({run, *runs} - {""}):
            problem = describe_foreign_file(directory / STATUS, status.problem)
        is_training = (contains_run or CONFIG in outputs) and not status.is_removed
        return cls(run, is_training, status, outputs, problem)


def contains_training_run(path: Path) -> bool:
    """Return whether a work directory contains a training run, also if its `status.json` is invalid or missing."""
    # Validations and tests register outputs as well, but only a training run writes its configuration.
    return RecordedRun.read(path).is_training


def find_config_problem(directory: Path, outputs: Iterable[str], runs: Iterable[str]) -> str:
    """Return the error of a `config.yaml` that a run would overwrite although no run has written it; "" without one."""
    path = directory / CONFIG
    if not is_replaceable(path):
        return describe_foreign_file(path, "it is not a regular file")
    try:
        run = _read_config_run(directory)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return describe_foreign_file(path, get_reason(error))
    # A listed file without an ID has been replaced by the user.
    is_own = run != "" and (CONFIG in outputs or run in runs)
    return "" if is_own else describe_foreign_file(path, "its first line does not contain the ID of the run")


def read_outputs(directory: Path) -> set[str]:
    """Return the outputs that the list in a work directory contains. Invalid lines are ignored."""
    try:
        content = read_regular_file(directory / OUTPUTS, MAX_SIZE)
    except OSError:
        return set()
    lines = content.decode(errors="replace").split("\n")
    return parse_names(name for line in lines if line != HEADER and (name := _parse_line(line)))


def parse_names(names: Iterable[str]) -> set[str]:
    """Return the names that denote a path inside a work directory."""
    # Checked for every list: the file may have been edited, and `overwrite` removes what it lists.
    return {name for name in names if _is_inside(name)}


def find_list_problem(directory: Path, *, contains_run: bool) -> str:
    """Return the error of a foreign file in the place of the list; "" if the list can be written.

    Args:
        directory: Work directory.
        contains_run: Whether other files in the directory were written by a run, so that a list without a header may
            be that of a run.
    """
    path = directory / OUTPUTS
    try:
        content = read_regular_file(path, MAX_SIZE)
    except OSError as error:
        return describe_foreign_file(path, get_reason(error)) if os.path.lexists(path) else ""
    # A failure of the disk leaves zeros, or truncates the last line.
    lines = [line for line in content.replace(b"\0", b"").split(b"\n") if line]
    is_list = all(line.startswith(b'"') for line in lines)
    if is_list and (contains_run or content.startswith(HEADER.encode())):
        return ""
    return describe_foreign_file(path, "it is not a list of outputs")


def append_output(directory: Path, name: str) -> None:
    """Append an output to the list, durably.

    Raises:
        OSError: If the list cannot be written, or is not a regular file.
    """
    path = directory / OUTPUTS
    with open(path, "a+b", opener=open_for_writing) as file:
        size = file.seek(0, os.SEEK_END)
        # A line that was truncated by a full disk must not merge with this one.
        file.seek(max(size - 1, 0))
        is_torn = file.read(1) not in (b"", b"\n")
        start = "\n" if is_torn else f"{HEADER}\n" if size == 0 else ""
        file.write(f"{start}{json.dumps(name)}\n".encode())
        file.flush()
        fsync_file(file.fileno(), path)
    if size == 0:
        fsync(directory)


def write_outputs(directory: Path, names: Iterable[str], run: str) -> None:
    """Replace the list, such as one with a truncated line."""
    text = "".join(f"{line}\n" for line in (HEADER, *map(json.dumps, sorted(names))))
    with suppress(OSError):  # on a full disk the former list is kept, and `append_output` completes its last line
        atomic_write(directory / OUTPUTS, lambda file: file.write(text.encode()), run=run)


def is_replaceable(path: Path) -> bool:
    """Return whether a listed output is missing, a regular file or a directory, rather than a link of the user."""
    return not os.path.lexists(path) or (not path.is_symlink() and (path.is_file() or path.is_dir()))


def remove_output(directory: Path, name: str) -> bool:
    """Remove an output; a directory is removed with its content.

    Returns:
        False if the path is foreign and kept: a link or special file in the place of the output, or a path that leads
        through a link out of the directory.
    """
    path = directory / name
    if not os.path.lexists(path):
        return True
    # The outputs of a linked directory are in the directory of the user that the link refers to.
    if not is_replaceable(path) or not path.parent.resolve().is_relative_to(directory.resolve()):
        return False
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return True


def _read_config_run(directory: Path) -> str:
    """Return the ID of the run in the first line of `config.yaml`; "" if it does not contain one."""
    with open_regular_file(directory / CONFIG, follow=False) as file:
        match = HEADER_PATTERN.match(file.read(MAX_HEADER_SIZE))
    return match[1].decode() if match else ""


def _read_sidecar_runs(directory: Path) -> set[str]:
    """Return the IDs of the runs whose checkpoints are in the default directory of a work directory."""
    try:
        paths = sorted((directory / CHECKPOINTS).glob("[!.]*.pth"))
    except (OSError, ValueError):  # an invalid path, which is reported when the directory is created
        return set()
    return {sidecar.run for path in paths if (sidecar := read_sidecar(path)) is not None and sidecar.run}


def _parse_line(line: str) -> str:
    """Return the path in a line; "" if the line is invalid."""
    with suppress(ValueError):
        return str(json.loads(line)) if line.startswith('"') else ""
    return ""


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] != LOCK and "\0" not in name and not name.startswith("/") and ".." not in parts
