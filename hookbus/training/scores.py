"""What a validation measures besides the loss: anything with update, compute and reset.

torchmetrics objects are taken as they are; a plain function `(outputs, targets) -> number` is averaged over samples, or
called once with all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hookbus._imports import cause_of, import_path
from hookbus.clock import batch_size
from hookbus.distributed import world_size
from hookbus.errors import ConfigError, did_you_mean
from hookbus.training.metric_states import combine_states, has_states
from hookbus.windows import exact_sum, to_float

if TYPE_CHECKING:
    from hookbus.ranks import Ranks

__all__ = ["Accuracy", "MeanOf", "OverAll", "Score", "called_twice", "scores_from", "targets_in"]

TARGET_KEYS = ("targets", "target", "labels", "label", "y")


class Score(Protocol):
    """What a validation can measure."""

    def update(self, outputs: Any, targets: Any) -> Any:
        """Take in one batch."""

    def compute(self) -> Any:
        """The result over all batches since the last reset: a number, or a mapping of them."""

    def reset(self) -> Any:
        """Begin again."""


class Combinable(Score, Protocol):
    """One that says how what several processes have measured goes together."""

    def combine(self, ranks: Ranks) -> object:
        """Take in what the other processes have measured; called on each of them, before `compute`.

        Args:
            ranks: the processes. Sums and counts go together, means do not, and one process may have had no batch.
        """


class Accuracy:
    """The share of samples whose largest output is the target. Counts are whole numbers, so it is exact."""

    def __init__(self) -> None:
        self._hits: Any = 0
        self._count = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in one batch.

        Args:
            outputs: scores of shape (N, C, ...), or classes of the targets' shape.
            targets: classes of shape (N, ...), or one-hot of the outputs' shape.
        """
        if outputs.dim() == targets.dim() + 1:
            outputs = outputs.argmax(1)
        elif outputs.shape == targets.shape and outputs.is_floating_point() and outputs.dim() > 1:
            outputs, targets = outputs.argmax(1), targets.argmax(1)
        hits = outputs == targets
        self._hits = self._hits + hits.sum()
        self._count += hits.numel()

    def combine(self, ranks: Ranks) -> None:
        """Add up the counts of all processes, exactly."""
        counts = ranks.gather("accuracy: hits and count", (int(self._hits), self._count))
        self._hits, self._count = map(sum, zip(*counts, strict=True))

    def compute(self) -> Tensor:
        """Hits by count, as float64 on the device; NaN where there was no sample."""
        return torch.as_tensor(self._hits, dtype=torch.float64) / self._count

    def reset(self) -> None:
        """Begin again."""
        self._hits, self._count = 0, 0


class MeanOf:
    """A plain function, averaged over samples.

    Args:
        function: `(outputs, targets) -> number`, the mean over the batch.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._total: Any = 0.0
        self._weight = 0

    def update(self, outputs: Any, targets: Any) -> None:
        """Take in one batch."""
        value = self._function(outputs, targets)
        weight = batch_size(targets) or batch_size(outputs) or 1
        self._total = self._total + (value.double() if isinstance(value, Tensor) else float(value)) * weight
        self._weight += weight

    def combine(self, ranks: Ranks) -> None:
        """Add up the sums of all processes, rounding once."""
        sums = ranks.gather("metrics: sum and weight", (to_float(self._total), self._weight))
        self._total, self._weight = exact_sum([total for total, _ in sums]), sum(weight for _, weight in sums)

    def compute(self) -> Any:
        """The mean over samples; NaN where there was none."""
        return self._total / self._weight if self._weight else float("nan")

    def reset(self) -> None:
        """Begin again."""
        self._total, self._weight = 0.0, 0


class OverAll:
    """A plain function of all outputs and targets at once, for results that no mean over batches can give, such as F1.

    Args:
        function: `(outputs, targets) -> number`, both of shape (N, ...) with N samples.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Keep one batch, on its device."""
        self._outputs.append(outputs.detach())
        self._targets.append(targets.detach())

    def combine(self, ranks: Ranks) -> None:
        """Take all batches, on the CPU, in the order in which one process would have judged them."""
        batches = [(o.cpu(), t.cpu()) for o, t in zip(self._outputs, self._targets, strict=True)]
        rounds = zip_longest(*ranks.gather("metrics: outputs and targets", batches))
        whole = [batch for batch in chain.from_iterable(rounds) if batch is not None]
        self._outputs, self._targets = [o for o, _ in whole], [t for _, t in whole]

    def compute(self) -> Any:
        """What the function makes of all batches; NaN where there was none."""
        return self._function(torch.cat(self._outputs), torch.cat(self._targets)) if self._outputs else float("nan")

    def reset(self) -> None:
        """Begin again, and let go of what was kept."""
        self._outputs, self._targets = [], []


def combine(scores: Mapping[str, Score], ranks: Ranks) -> None:
    """Let scores take in what the other processes have measured; with one process they have it all.

    Args:
        scores: by name, the same on all processes.
        ranks: the processes.
    """
    if ranks.world_size == 1:
        return
    for name, score in scores.items():
        if has_states(score):
            combine_states(name, score, ranks)
        else:
            score.combine(ranks)  # type: ignore[attr-defined]


BUILT_IN: Mapping[str, Callable[[], Score]] = {"accuracy": Accuracy}


def scores_from(metrics: Iterable[Any] | Mapping[str, Any], *, streaming: bool = True) -> dict[str, Score]:
    """Scores by name.

    Args:
        metrics: names of built-in ones, dotted paths, functions or objects, or a single one; a mapping gives names of
            its own.
        streaming: whether a plain function is averaged over batches, of which nothing is kept; otherwise it is called
            once, with all outputs and targets.

    Raises:
        ConfigError: one of them is none of these, or two of them have one name.
    """
    if isinstance(metrics, Mapping):
        return {name: _score(metric, streaming) for name, metric in metrics.items()}
    scores: dict[str, Score] = {}
    for metric in [metrics] if isinstance(metrics, str) or callable(metrics) or _measures(metrics) else metrics:
        name = _name_of(metric)
        if name in scores:
            raise ConfigError([f"metrics: {called_twice(name)}"])
        scores[name] = _score(metric, streaming)
    return scores


def called_twice(name: str) -> str:
    """What is wrong where two scores have one name."""
    return f"two of them are called {name!r}: give a mapping with names of your own."


def targets_in(batch: Any) -> Any:
    """The targets of a batch: the last of a tuple, or the value under a usual key; None where there are none."""
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[-1]
    if isinstance(batch, Mapping):
        return next((batch[key] for key in TARGET_KEYS if key in batch), None)
    return None


def _score(metric: Any, streaming: bool) -> Score:
    if isinstance(metric, str):
        return BUILT_IN[metric]() if metric in BUILT_IN else _score(_imported(metric), streaming)
    if isinstance(metric, type):
        metric = _built(metric)
    if _measures(metric):
        _see_that_it_combines(metric)
        return metric  # type: ignore[no-any-return]
    if callable(metric):
        return MeanOf(metric) if streaming else OverAll(metric)
    raise ConfigError([f"metrics: {metric!r} is neither a name, a function nor an object with update and compute."])


def _measures(metric: object) -> bool:
    return all(hasattr(metric, name) for name in ("update", "compute", "reset"))


def _see_that_it_combines(metric: Any) -> None:
    if world_size() > 1 and not hasattr(metric, "combine") and not has_states(metric):
        raise ConfigError(
            [
                f"metrics: {type(metric).__name__} does not say how the results of {world_size()} processes go "
                "together. Give it a method combine(ranks), which adds up what ranks.gather(name, value) returns for "
                "its sums and counts."
            ]
        )


def _built(cls: type) -> Any:
    try:
        return cls()
    except Exception as error:
        how = "Name a function or an object that needs no arguments, or give a ready one to the Trainer in Python."
        raise ConfigError([f"metrics: {cls.__name__} cannot be built: {cause_of(error)}. {how}"]) from error


def _imported(path: str) -> Any:
    if "." not in path and ":" not in path:
        raise ConfigError([f"metrics: there is no built-in metric {path!r}.{did_you_mean(path, BUILT_IN)}"])
    try:
        return import_path(path)
    except ImportError as error:
        raise ConfigError([f"metrics: {error}"]) from None


def _name_of(metric: Any) -> str:
    if isinstance(metric, str):
        return metric.replace(":", ".").rpartition(".")[2]
    name = getattr(metric, "__name__", None) or type(metric).__name__
    return name.lower() if name[:1].isupper() else name
