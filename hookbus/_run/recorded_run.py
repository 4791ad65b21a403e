"""The run that a work directory contains, according to all files that identify it.

No single file is decisive: `status.json` may have been deleted or damaged, and a copy of a directory may lack its
hidden files. Checkpoints identify their run by their sidecars, and `config.yaml` by its first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hookbus._run.directory_lock import describe_foreign_file, find_lock_problem, has_lock_file
from hookbus._run.outputs import find_list_problem, is_replaceable, parse_names, read_outputs
from hookbus._run.status import OUTPUTS_KEY, STATUS, StatusFile
from hookbus._utils.files import get_reason, open_regular_file
from hookbus.checkpoint.sidecars import read_sidecar

CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"

HEADER_PATTERN = re.compile(rb"# run: ([0-9A-Za-z]{1,64})\r?\n")
MAX_HEADER_SIZE = 80


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
        outputs = read_outputs(directory) | parse_names(status.fields.get(OUTPUTS_KEY, ()))
        if status.run:
            problem = find_lock_problem(directory) or find_list_problem(directory, contains_run=True)
            return cls(status.run, not status.is_removed, status, frozenset(outputs), problem)
        runs = _read_sidecar_runs(directory)
        header = _read_config_run(directory)
        owner = header if CONFIG in outputs or header in runs else ""
        run = owner or (runs.pop() if len(runs) == 1 else "")
        contains_run = bool(run or runs)
        problem = find_lock_problem(directory) or find_list_problem(
            directory, contains_run=contains_run or has_lock_file(directory)
        )
        if not problem and status.problem and not status.is_damaged({run, *runs} - {""}):
            problem = describe_foreign_file(directory / STATUS, status.problem)
        return cls(run, contains_run or CONFIG in outputs, status, frozenset(outputs), problem)


def contains_training_run(path: Path) -> bool:
    """Return whether a work directory contains a training run, also if its `status.json` is invalid or missing."""
    # Validations and tests register outputs as well, but only a training run writes its configuration.
    return RecordedRun.read(path).is_training


def get_config_header(run: str) -> str:
    """Return the first line of the `config.yaml` of a run."""
    return f"# run: {run}\n"


def find_config_problem(directory: Path, outputs: Iterable[str], runs: Iterable[str]) -> str:
    """Return the error of a `config.yaml` that a run would overwrite although no run has written it; "" without one.

    Args:
        directory: Work directory.
        outputs: Registered outputs.
        runs: IDs of the runs whose file is overwritten, also if it is not registered.
    """
    path = directory / CONFIG
    if not is_replaceable(path):
        return describe_foreign_file(path, "it is not a regular file")
    try:
        with open_regular_file(path, follow=False) as file:
            match = HEADER_PATTERN.match(file.read(MAX_HEADER_SIZE))
    except FileNotFoundError:
        return ""
    except OSError as error:
        return describe_foreign_file(path, get_reason(error))
    # A listed file without an ID has been replaced by the user.
    is_own = match is not None and (CONFIG in outputs or match[1].decode() in runs)
    return "" if is_own else describe_foreign_file(path, "its first line does not contain the ID of the run")


def _read_config_run(directory: Path) -> str:
    """Return the ID of the run in the first line of `config.yaml`; "" if the file does not contain one."""
    try:
        with open_regular_file(directory / CONFIG, follow=False) as file:
            match = HEADER_PATTERN.match(file.read(MAX_HEADER_SIZE))
    except OSError:
        return ""
    return match[1].decode() if match else ""


def _read_sidecar_runs(directory: Path) -> set[str]:
    """Return the IDs of the runs whose checkpoints are in the default directory of a work directory."""
    try:
        paths = sorted((directory / CHECKPOINTS).glob("[!.]*.pth"))
    except (OSError, ValueError):  # an invalid path, which is reported when the directory is created
        return set()
    return {sidecar.run for path in paths if (sidecar := read_sidecar(path)) is not None and sidecar.run}
