"""`status.json`: the state of the training run in a work directory."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookbus._run.status_file import MAX_STATUS_SIZE, parse_status
from hookbus._utils.files import get_reason, read_regular_file

STATUS = "status.json"
CHECKPOINT = "checkpoint"
"""Key of `status.json`: path of the newest checkpoint that the run has committed; null before the first one.

The path is relative to the work directory if the file is inside it. Earlier versions did not write the key.
"""

OUTPUTS_KEY = "outputs"
"""Key of `status.json`: the registered outputs, also if the list of outputs is lost."""

ELSEWHERE = "directories"
"""Key of `status.json`: absolute paths of the directories outside the work directory that the run has locked.

A killed process may have left partial files in them, also if a later run has another `out_dir`.
"""

OVERWRITTEN = "overwritten"
"""Key of `status.json`: IDs of overwritten runs whose files in other directories may not have been removed yet."""

DIRECTORY = "directory"
"""Key of `status.json`: absolute path of the work directory when the file was written, which identifies a copy."""

REMOVED = "removed"
"""Outcome of a run whose removal has begun; the next run in the directory completes it."""

BEGINNING = b'{\n  "run": "'


@dataclass(frozen=True)
class StatusFile:
    """Content of `status.json`.

    Attributes:
        fields: Content; {} if the file is missing, or was not written by a run.
        problem: Reason why an existing file is not the status of a run; "" if it is, or does not exist.
        content: Bytes of an invalid file, as far as they could be read.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    content: bytes | None = None

    @classmethod
    def read(cls, directory: Path) -> StatusFile:
        """Read the file in a work directory."""
        path = directory / STATUS
        try:
            content = read_regular_file(path, MAX_STATUS_SIZE)
        except OSError as error:
            return cls(problem=get_reason(error)) if os.path.lexists(path) else cls()
        try:
            fields = parse_status(content)
        except ValueError as error:
            return cls(problem=str(error), content=content)
        problem = _find_problem(fields)
        return cls(problem=problem, content=content) if problem else cls(fields)

    @property
    def run(self) -> str:
        """ID of the run; "" if there is none."""
        return str(self.fields.get("run", ""))

    @property
    def is_removed(self) -> bool:
        """Whether the removal of the run has begun."""
        return self.fields.get("outcome") == REMOVED

    def is_damaged(self, runs: Collection[str]) -> bool:
        """Return whether an invalid file is nevertheless that of a run in the directory.

        Args:
            runs: IDs of the runs that other files in the directory were written by.
        """
        if self.content is None or not runs:
            return False
        # After a failure of the disk, the file is empty or consists of zeros, or parts of it are lost.
        is_start = BEGINNING.startswith(self.content.rstrip(b"\0"))
        return is_start or any(run.encode() in self.content for run in runs)


def read_status(path: Path) -> dict[str, Any]:
    """Return the content of `status.json` in a work directory; {} if it contains no run, or its removal has begun."""
    status = StatusFile.read(path)
    return {} if status.is_removed else dict(status.fields)


def _find_problem(fields: Mapping[str, Any]) -> str:
    """Return the reason why a valid document is not the status of a run; "" if it is."""
    if not fields.get("run"):
        return "it does not contain the ID of a run"
    overwritten = fields.get(OVERWRITTEN, [])
    if not isinstance(fields.get(DIRECTORY, ""), str):
        return f"{DIRECTORY}: should be a path"
    is_list = isinstance(overwritten, list) and all(isinstance(run, str) and run.isalnum() for run in overwritten)
    return "" if is_list else f"{OVERWRITTEN}: should be a list of IDs"
