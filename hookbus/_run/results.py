"""Results of validations and tests: names, values across ranks, the best of a metric, and `log_scalars` events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookbus._utils.imports import suggest_if_close
from hookbus.errors import MetricError
from hookbus.metrics.logged import EVALUATIONS, get_prefix
from hookbus.metrics.results import Metrics
from hookbus.metrics.windows import to_float

if TYPE_CHECKING:
    from hookbus._events.bus import EventBus

EvaluationKind = Literal["val", "test", "predict"]


@dataclass(frozen=True, slots=True)
class BestResult:
    """Best result of one metric so far.

    Attributes:
        value: Value of the metric.
        epoch: Number of the epoch, from 1, in which the value was reached.
        step: Number of optimizer steps at that time.
        weights: Weights that were evaluated: "raw", "averaged", "averaged/<hook>" for the average of a further hook, or
            "evaluated" for weights that a hook has exchanged otherwise: `state_dict` of the checkpoint contains them.
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


class BestResults(dict[str, BestResult]):
    """Best results by full name of the metric. The lookup of another name raises a MetricError that lists them."""

    def __missing__(self, name: str) -> BestResult:
        hint = suggest_if_close(name, self)
        available = f" Available: {', '.join(sorted(self))}." if self else " No metric has a best result yet."
        raise MetricError(
            f"run.best: no best result of the metric {name!r}.{hint}{available} The checkpoint hook records the best "
            "result of the metrics whose best checkpoint is requested, such as {type: checkpoint, save_best: true, "
            f"best_metric: {name}}}."
        )


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
        kind: "val", "test" or "predict".
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
    raise MetricError(
        f"The {EVALUATIONS[kind]} function must return a mapping or None, got {type(returned).__name__}. Return "
        "metrics by name, such as {'accuracy': 0.9}."
    )


@dataclass(frozen=True, slots=True)
class LogSource:
    """Source of the values of a `log_scalars` event that no hook emitted.

    Attributes:
        stage: "train" for the means of training, "val", "test" or "predict" for results.
        dataloader_name: Name of the loader if there are multiple loaders.
    """

    stage: Literal["train", "val", "test", "predict"]
    dataloader_name: str | None = None


class Recording:
    """Emit `log_scalars` for the means of training and for the results of validations and tests.

    Hooks with `records_means` write the means of training on their own schedules. One record is emitted per step: of
    those delivered together, that of the shortest window.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._values: Metrics | None = None
        self._source: LogSource | None = None
        self._last_step = -1  # of the last record of training
        self._observers: bool | None = None  # whether a hook that records no means listens; None until it is known

    def on_hooks_changed(self) -> None:
        """Forget which hooks listen; called after hooks were registered, unregistered or disabled."""
        self._observers = None

    def get_source(self, values: object) -> LogSource | None:
        """Return the source of the values of the event in progress; None if a hook or the loop emitted them."""
        return self._source if values is self._values and values is not None else None

    def publish(self, values: Mapping[str, float], step: int, source: LogSource) -> None:
        """Emit values, read-only and as floats; no event for an empty mapping."""
        if not values:
            return
        outer = self._values, self._source
        self._values, self._source = Metrics({name: float(value) for name, value in values.items()}), source
        try:
            self._bus.fire("log_scalars", values=self._values, step=step)
        finally:
            self._values, self._source = outer

    def publish_means(
        self, records: Iterable[tuple[str, int, Metrics]], step: int, get_more: Callable[[], Mapping[str, float]]
    ) -> None:
        """Emit the record of the shortest window among those that hooks with `records_means` have requested.

        Args:
            records: Name of the hook, number of iterations in the window, and means.
            step: Number of optimizer steps.
            get_more: Function that returns the further values of a record, such as learning rates.
        """
        # A record of the same step that is delivered later, such as at the end of an epoch, covers the same iterations.
        if step == self._last_step or not self._is_observed():
            return
        hooks = self._bus.hooks
        own = [(length, means) for name, length, means in records if getattr(hooks.get(name), "records_means", False)]
        if own:
            self._last_step = step
            _, means = min(own, key=lambda record: record[0])
            self.publish({**means, **get_more()}, step, LogSource("train"))

    def _is_observed(self) -> bool:
        """Return whether a hook listens that does not write the records itself."""
        if self._observers is None:
            listeners = self._bus.table.listeners("log_scalars", self._bus.current)
            self._observers = not all(getattr(listener.plugin, "records_means", False) for listener in listeners)
        return self._observers
