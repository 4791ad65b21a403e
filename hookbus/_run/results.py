"""Results of validations and tests: names, values across ranks, and the best result of a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hookbus.errors import MetricError
from hookbus.metrics.logged import get_prefix
from hookbus.metrics.results import Metrics
from hookbus.metrics.windows import to_float

EvaluationKind = Literal["val", "test"]


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


def find_differences(gathered: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a description of each result that differs between ranks, such as "val/loss is 1, 4"."""
    values = {name: [results.get(name, math.nan) for results in gathered] for name in gathered[0]}
    # Compared as text: NaN is not equal to itself.
    differing = {name: by_rank for name, by_rank in values.items() if len(set(map(repr, by_rank))) > 1}
    return [f"{name} is {', '.join(f'{value:.6g}' for value in by_rank)}" for name, by_rank in differing.items()]


def merge_ranks(gathered: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], list[str]]:
    """Return the values that ranks have logged, those of the lowest rank, and the differences of `find_differences`."""
    merged = {name: value for values in reversed(gathered) for name, value in values.items()}
    return merged, find_differences([{**merged, **values} for values in gathered])


def name_results(kind: EvaluationKind, loader: str | None, results: Mapping[str, Any]) -> Metrics:
    """Return results under their full names.

    Args:
        kind: "val" or "test".
        loader: Name of the loader if there are multiple loaders.
        results: Results by name. A name that is not a string, such as a class index, is converted.

    Raises:
        MetricError: If a result is not a single number.
    """
    own, prefix = get_prefix(kind, None), get_prefix(kind, loader)
    texts = {str(name): value for name, value in results.items()}
    return Metrics({n if n.startswith(own) else prefix + n: _to_number(n, value) for n, value in texts.items()})


def _to_number(name: str, value: Any) -> float:
    """Return a result as a float."""
    try:
        return to_float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        description = f"{type(value).__name__}{shape}"
        raise MetricError(
            f"validation: the result {name!r} must be a single number, got {description}. Return numbers by name, such "
            "as {'accuracy': 0.9}, with one name per number."
        ) from None


def check_returned(kind: EvaluationKind, returned: Any) -> Mapping[str, Any] | None:
    """Check that a validation or test function returned a mapping or None, and return it."""
    if returned is None or isinstance(returned, Mapping):
        return returned
    label = {"val": "validation", "test": "test"}[kind]
    raise MetricError(
        f"The {label} function must return a mapping or None, got {type(returned).__name__}. Return metrics by name, "
        "such as {'accuracy': 0.9}."
    )
