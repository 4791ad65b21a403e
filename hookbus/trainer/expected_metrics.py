"""Prediction of the metrics that validations will provide, to check the hooks that read them before training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._run.result_names import name_results
from hookbus._training.eval_metrics import EvalMetric
from hookbus._training.evaluation import compute_metrics, named_loaders
from hookbus.distributed.collectives import Collectives
from hookbus.errors import ConfigError, MetricError
from hookbus.hook import Hook
from hookbus.metrics.results import resolve_metric_name
from hookbus.metrics.store import EvaluationMeans, MetricStore

if TYPE_CHECKING:
    from hookbus._events.registry import RegisteredPlugin
    from hookbus.trainer.setup import TrainerSetup

VALIDATION_POINTS = frozenset(f"{when}_val{part}" for when in ("before", "after") for part in ("", "_epoch", "_iter"))
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
        self._has_loaders = bool(loaders)

    def observe_batch(self, loader: str | None, outputs: Any, metrics: Mapping[str, EvalMetric]) -> None:
        """Record the result names of one batch.

        Args:
            loader: Name of the loader, None if there is only one.
            outputs: Outputs of the model.
            metrics: Metrics after the update with this batch.
        """
        store, evaluation = MetricStore(), EvaluationMeans()
        store.set_evaluation(evaluation)
        store.log_outputs(outputs, None)
        provided = [name for hook in self._hooks().values() for name in hook.provided_metrics or ()]
        results = dict.fromkeys([*evaluation.results(Collectives()), *_result_names(metrics), *provided], 0.0)
        self._names |= set(name_results("val", loader, results))
        self._unseen.discard(loader)

    def find_error(self, reader: str, metrics: Collection[str]) -> ConfigError | None:
        """Return an error if validations will not provide the metrics that a reader requires.

        Args:
            reader: Description of the reader, for messages.
            metrics: Names of the metrics, in any accepted form.

        Returns:
            Error if a name is unknown or ambiguous, with the available metrics in the message; otherwise None.
        """
        problems = [problem for metric in metrics if (problem := self._check_metric(metric))]
        if problems and self._is_complete():
            return ConfigError(f"{reader}: {problem}" for problem in problems)
        return None

    def _check_metric(self, metric: str) -> str:
        try:
            resolve_metric_name(metric, self._names)
        except MetricError as error:
            return str(error)
        return ""

    def _is_complete(self) -> bool:
        """Return whether the collected names are complete; without a loader, the validation itself is missing."""
        adds_results = any(h.validation_fn is not None or h.provided_metrics is None for h in self._hooks().values())
        may_add = adds_results or any(map(_may_add_results, self._trainer.bus.pm.members.values()))
        return self._has_loaders and not self._unseen and not may_add

    def _hooks(self) -> dict[str, Hook]:
        return {name: hook for name, hook in self._trainer.bus.hooks.items() if isinstance(hook, Hook)}


def _may_add_results(member: RegisteredPlugin) -> bool:
    """Return whether a plugin may add undeclared results: by a `val_step`, or as a plugin that is not a Hook."""
    return "val_step" in member.implementations or not (
        isinstance(member.plugin, Hook) or VALIDATION_POINTS.isdisjoint(member.implementations)
    )


def _result_names(metrics: Mapping[str, EvalMetric]) -> list[str]:
    """Return the result names of metrics."""
    try:
        return list(compute_metrics(metrics))
    except Exception:  # a metric such as AUROC may raise on a single batch; its own name is the best guess
        return list(metrics)
