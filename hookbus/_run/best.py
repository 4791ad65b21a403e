"""Best result of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class BestResult:
    """Best result of one metric so far.

    Attributes:
        value: Value of the metric.
        epoch: Number of the epoch, from 1, in which the value was reached.
        step: Number of optimizer steps at that time.
        weights: Weights that were evaluated, "raw" or "averaged".
        path: Checkpoint that contains the weights; None if none was written.
    """

    value: float
    epoch: int
    step: int
    weights: str = "raw"
    path: Path | None = None

    def state_dict(self, work_dir: Path | None = None) -> dict[str, Any]:
        """Return the attributes as built-in Python types.

        Args:
            work_dir: Work directory; the path of a file inside it is stored relative to it, else the name of the file.
        """
        # `weights_only=True` loads no `Path`.
        return {**asdict(self), "path": None if self.path is None else _to_relative(self.path, work_dir)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BestResult:
        """Return the object whose `state_dict()` was given, with the stored path, see `locate`."""
        return cls(**{**state, "path": Path(state["path"]) if state["path"] else None})

    def locate(self, directories: Sequence[Path]) -> BestResult:
        """Return the result with the path of its file in the directories of a run.

        The run may have been renamed, moved or copied since its state was stored.

        Args:
            directories: Directories to search. A missing file is expected in the first one.
        """
        if self.path is None:
            return self
        inside = [] if self.path.is_absolute() else [directory / self.path for directory in directories]
        # Files of early versions contain paths from the root or from the working directory of that time.
        candidates = [*inside, *(directory / self.path.name for directory in directories), self.path]
        return replace(self, path=next((path for path in candidates if path.exists()), candidates[0]))


def _to_relative(path: Path, work_dir: Path | None) -> str:
    if work_dir is not None and path.absolute().is_relative_to(work_dir.absolute()):
        return path.absolute().relative_to(work_dir.absolute()).as_posix()
    return path.name
