"""Prediction of the metrics that validations will provide, to check the hooks that read them before training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hookbus.errors import MetricError, RequestError
from hookbus.hook import Hook
from hookbus.metrics import Evaluation, MetricStore, resolve
from hookbus.ranks import Ranks
from hookbus.runs.validations import named_results
from hookbus.training.evaluation import named_loaders, results_of
from hookbus.training.scores import Score

if TYPE_CHECKING:
    from hookbus.assembly.setup import TrainerSetup
    from hookbus.dispatch.members import Member

__all__ = ["ExpectedMetrics"]

VALIDATING = frozenset(f"{when}_val{part}" for when in ("before", "after") for part in ("", "_epoch", "_iter"))
"""Points whose listeners can add results to a validation."""


class ExpectedMetrics:
    """Collect the names of validation results from one batch of each loader.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: TrainerSetup) -> None:
        self._trainer = trainer
        self._names: set[str] = set()
        loaders = {} if trainer.val_loader is None else dict(named_loaders(trainer.val_loader))
        self._unseen: set[str | None] = set(loaders)
        self._can_validate = bool(loaders) or any(hook.validates_with is not None for hook in self._hooks().values())

    def see(self, loader: str | None, outputs: Any, scores: Mapping[str, Score]) -> None:
        """Record the result names of one batch.

        Args:
            loader: Name of the loader, None if there is only one.
            outputs: Outputs of the model.
            scores: Metrics after the update with this batch.
        """
        store, evaluation = MetricStore(), Evaluation()
        store.evaluate(evaluation)
        store.note(outputs, None)
        provided = [name for hook in self._hooks().values() for name in hook.gives_metrics or ()]
        results = dict.fromkeys([*evaluation.results(Ranks()), *_names_of(scores), *provided], 0.0)
        self._names |= set(named_results("val", loader, results))
        self._unseen.discard(loader)

    def look_for(self, reader: str, metrics: Collection[str]) -> None:
        """Raise if validations will not provide the metrics that a reader requires.

        Args:
            reader: Description of the reader, for messages.
            metrics: Names of the metrics, in any accepted form.

        Raises:
            RequestError: If there will be no validations.
            MetricError: If a name is unknown or ambiguous. The message lists the available metrics.
        """
        if metrics and not self._can_validate:
            names = ", ".join(map(repr, metrics))
            raise RequestError(
                f"{reader} requires {names} of a validation, but there is no val_loader. Pass "
                "val_loader= to the Trainer."
            )
        problems = [problem for metric in metrics if (problem := self._problem_of(metric))]
        if problems and self._tells_all():
            raise MetricError("\n".join(f"{reader}: {problem}" for problem in problems))

    def _problem_of(self, metric: str) -> str:
        try:
            resolve(metric, self._names)
        except MetricError as error:
            return str(error)
        return ""

    def _tells_all(self) -> bool:
        """Return whether the collected names are complete."""
        adds_results = any(h.validates_with is not None or h.gives_metrics is None for h in self._hooks().values())
        return not (self._unseen or adds_results or any(map(_is_unknown, self._trainer.bus.pm.members.values())))

    def _hooks(self) -> dict[str, Hook]:
        return {name: hook for name, hook in self._trainer.bus.hooks.items() if isinstance(hook, Hook)}


def _is_unknown(member: Member) -> bool:
    """Return whether a plugin may add undeclared results: by a `val_step`, or as a plugin that is not a Hook."""
    return "val_step" in member.found or not (isinstance(member.plugin, Hook) or VALIDATING.isdisjoint(member.found))


def _names_of(scores: Mapping[str, Score]) -> list[str]:
    """Return the result names of metrics."""
    try:
        return list(results_of(scores))
    except Exception:  # a metric such as AUROC may raise on a single batch; its own name is the best guess
        return list(scores)
