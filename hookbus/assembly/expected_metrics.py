"""Which results will the validations of a training give? For those who read them, before anything is trained."""

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
    from hookbus.dispatch.members import Member
    from hookbus.loop import Trainer

__all__ = ["ExpectedMetrics"]

VALIDATING = frozenset(f"{when}_val{part}" for when in ("before", "after") for part in ("", "_epoch", "_iter"))
"""Where something can be added to the results of a validation."""


class ExpectedMetrics:
    """The names of the results that validations will give, as far as one batch of each loader tells.

    Args:
        trainer: the trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._names: set[str] = set()
        loaders = {} if trainer.val_loader is None else dict(named_loaders(trainer.val_loader))
        self._unseen: set[str | None] = set(loaders)
        self._can_validate = bool(loaders) or any(hook.validates_with is not None for hook in self._hooks().values())

    def see(self, loader: str | None, outputs: Any, scores: Mapping[str, Score]) -> None:
        """Take in one batch of a loader.

        Args:
            loader: its name, None where there is only one.
            outputs: what the model made of the batch.
            scores: those that have measured it.
        """
        store, evaluation = MetricStore(), Evaluation()
        store.evaluate(evaluation)
        store.note(outputs, None)
        given = [name for hook in self._hooks().values() for name in hook.gives_metrics or ()]
        found = dict.fromkeys([*evaluation.results(Ranks()), *_names_of(scores), *given], 0.0)
        self._names |= set(named_results("val", loader, found))
        self._unseen.discard(loader)

    def look_for(self, reader: str, metrics: Collection[str]) -> None:
        """See that validations will give what is read in their results.

        Args:
            reader: who reads it.
            metrics: what, in any spelling.

        Raises:
            RequestError: there will be no validations.
            MetricError: one of them means nothing, or several things; the message lists what there is.
        """
        if metrics and not self._can_validate:
            what = ", ".join(map(repr, metrics))
            raise RequestError(f"{reader} reads {what} in the results of validations, and there is no val_loader.")
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
        """Whether nothing but what was seen can be among the results."""
        bringing = any(h.validates_with is not None or h.gives_metrics is None for h in self._hooks().values())
        return not (self._unseen or bringing or any(map(_is_unknown, self._trainer.bus.pm.members.values())))

    def _hooks(self) -> dict[str, Hook]:
        return {name: hook for name, hook in self._trainer.bus.hooks.items() if isinstance(hook, Hook)}


def _is_unknown(member: Member) -> bool:
    """Whether someone may add to the results and has no way to say so: by a step, or as a plain function or plugin."""
    return "val_step" in member.found or not (isinstance(member.plugin, Hook) or VALIDATING.isdisjoint(member.found))


def _names_of(scores: Mapping[str, Score]) -> list[str]:
    """What scores will call their results; one that cannot judge a single batch has one, under its own name."""
    try:
        return list(results_of(scores))
    except Exception:
        return list(scores)
