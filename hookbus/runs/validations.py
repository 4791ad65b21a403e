"""Validations and tests of a run: what surrounds them, and the names of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from hookbus.clock import batch_size
from hookbus.errors import MetricError, RequestError
from hookbus.hook import Hook
from hookbus.metrics import Evaluation, Metrics, to_float
from hookbus.model.fsdp2 import gathered

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["Evaluator", "Kind", "Validations", "named_results"]

Kind = Literal["val", "test"]
Evaluator = Callable[["Run"], Mapping[str, Any] | None]


class Validations:
    """How a run validates and tests.

    Args:
        run: the run.
        evaluators: by kind, the code that makes one; None where the run has none.

    Attributes:
        validated_at: the number of updates at the last validation that counted; -1 for none.
        on_results: what the loop does with the results of a validation of its training, before `after_val`.
    """

    def __init__(self, run: Run, evaluators: Mapping[Kind, Evaluator | None], validated_at: int) -> None:
        self._run = run
        self._evaluators = evaluators
        self._around: list[Callable[[], AbstractContextManager[Any]]] = []
        self._entered = ExitStack()
        self._evaluation = Evaluation()
        self._told: set[str] = set()
        self._kept: dict[int, tuple[Any, Any]] = {}
        self.validated_at = validated_at
        self.on_results: Callable[[Run], object] | None = None

    def can_make(self, kind: Kind) -> bool:
        """Whether there is a way to make one."""
        return self._find(kind) is not None

    def evaluator(self, kind: Kind) -> Evaluator:
        """The code that makes one.

        Raises:
            RequestError: there is none; the message says what to give.
        """
        found = self._find(kind)
        if found is not None:
            return found
        if kind == "val":
            how = "This run has no way to validate: give val_loader= to the Trainer, or validate= to bus.run."
        else:
            how = "This run has no way to test: give test_loader= to the Trainer."
        raise RequestError(how)

    def _find(self, kind: Kind) -> Evaluator | None:
        """The code of the hook that brings its own, else that of the run."""
        if kind == "test":
            return self._evaluators[kind]
        hooks = {name: hook for name, hook in self._run.bus.hooks.items() if isinstance(hook, Hook)}
        brought = {name: hook.validates_with for name, hook in hooks.items() if hook.validates_with is not None}
        if len(brought) > 1:
            raise RequestError(
                f"{' and '.join(sorted(brought))} would both validate in the place of the run. Let one of them do it: "
                "several data sets are a mapping of name to loader."
            )
        return next(iter(brought.values()), self._evaluators[kind])

    def surround(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Surround every validation and test by a context."""
        self._around.append(context)

    def make(self, kind: Kind, *, sanity: bool) -> Metrics:
        """Validate or test now. Module modes, gradient mode and random streams are as before afterwards.

        Raises:
            RequestError: there is no way to make one, or one is going on.
        """
        from hookbus.training.evaluation import evaluating

        run, evaluator = self._run, self.evaluator(kind)
        if run.validating:
            raise RequestError("A validation or test is going on, so another one cannot begin: make it afterwards.")
        with evaluating(run.model), self._going_on(kind, sanity):
            run.brackets.open_automatically(kind, held=True)
            if run.keeps_brackets and evaluator is self._evaluators[kind]:
                run.brackets.open_automatically(f"{kind}_epoch")
            returned = _by_name(kind, evaluator(run))
            run.brackets.close(f"{kind}_epoch", metrics=returned)
            run.metrics.results |= self._agreed(kind, None, {} if returned is None else returned)
            if kind == "val" and run.mode == "train" and not sanity and self.on_results is not None:
                self.on_results(run)
            run.brackets.close(kind)
            results = self.results(kind)
        if kind == "val" and not sanity:
            self.validated_at = run.clock.steps_done
        return results

    @contextmanager
    def _going_on(self, kind: Kind, sanity: bool) -> Iterator[None]:
        """The run says that one is going on. Whatever becomes of it, nothing of it stays open."""
        run, kept = self._run, self._run.metrics.results
        run.validating, run.sanity_checking = True, sanity
        try:
            yield
        finally:
            self.leave()
            run.brackets.forget(kind)
            run.validating = run.sanity_checking = False
            if sanity:
                run.metrics.results = kept

    def results(self, kind: Kind) -> Metrics:
        """The latest results of one kind."""
        return Metrics({n: v for n, v in self._run.metrics.results.items() if n.startswith(f"{kind}/")})

    # -- called at the points ----------------------------------------------------------------

    def enter(self, kind: Kind) -> None:
        """Just before `before_val` and `before_test`: enter what surrounds a validation, whose results are its own."""
        store = self._run.metrics
        store.results = Metrics({n: v for n, v in store.results.items() if not n.startswith(f"{kind}/")})
        self._entered.close()
        for context in self._around:
            self._entered.enter_context(context())
        self._entered.enter_context(gathered(self._run.model))

    def leave(self) -> None:
        """Just after `after_val` and `after_test`: leave what surrounds a validation. Idempotent."""
        self._run.metrics.evaluate(None)
        self._entered.close()

    def begin_loader(self) -> None:
        """Just before `before_val_epoch`: a loader begins."""
        self._run.clock.batch = -1
        self._evaluation = Evaluation()
        self._run.metrics.evaluate(self._evaluation)

    def begin_batch(self, batch_idx: int | None, batch: Any) -> None:
        """Just before `before_val_iter`: a batch of it begins."""
        self._run.clock.see_batch(batch_idx, opening=True)
        self._evaluation.weight = batch_size(batch) or 1

    def end_batch(self, batch_idx: int | None, batch: Any, outputs: Any, loss: Any) -> None:
        """Just before `after_val_iter`: a batch of it is done, and its numbers count by its size."""
        self._run.clock.see_batch(batch_idx, opening=False)
        self._evaluation.weight = batch_size(batch) or 1
        self._run.metrics.note(outputs, loss)

    def end_loader(self, kind: Kind, metrics: Mapping[str, Any] | None, name: str | None) -> Metrics:
        """Just before `after_val_epoch`: a loader is done, and its results get their full names.

        Args:
            kind: "val" or "test".
            metrics: results that the loop has found; they win over the means of what was logged.
            name: the name of the loader, where there are several.
        """
        store = self._run.metrics
        store.evaluate(None)
        means, self._evaluation = self._evaluation.results(self._run.ranks), Evaluation()
        named = self._agreed(kind, name, {**means, **(metrics or {})})
        store.results |= named
        return named

    def kept(self, loader: Any, make: Callable[[], Any]) -> Any:
        """What is made of a loader: once in a run where its workers persist, each time otherwise.

        Args:
            loader: what is judged.
            make: makes a loader of it.
        """
        if not getattr(loader, "persistent_workers", False):
            return make()
        if id(loader) not in self._kept:
            self._kept[id(loader)] = loader, make()
        return self._kept[id(loader)][1]

    def close(self) -> None:
        """Let go of the loaders that were kept, and with that of their workers."""
        self._kept.clear()

    def tell_once(self, message: str, *values: object) -> None:
        """Log a warning, unless it was logged before.

        Args:
            message: with a place for each value.
            values: what it is about, this time.
        """
        if message not in self._told:
            self._told.add(message)
            self._run.logger.warning(message, *values)

    def _agreed(self, kind: Kind, loader: str | None, found: Mapping[str, Any]) -> Metrics:
        """Results under their full names; those of the main process hold on all, so that all decide alike."""
        everywhere = self._run.ranks.gather("results of the loop", dict(named_results(kind, loader, found)))
        if differing := _differing(everywhere):
            self.tell_once(
                "Results differ over the processes, and those of the main one hold on all: %s. What a loop finds by "
                "itself it has to add up over the processes: sums and counts, with run.ranks.gather.",
                "; ".join(differing),
            )
        return Metrics(everywhere[0])


def _differing(everywhere: Sequence[Mapping[str, float]]) -> list[str]:
    """Results that are not the same everywhere, in words: "val/loss is 1, 4"."""
    values = {name: [each.get(name, math.nan) for each in everywhere] for name in everywhere[0]}
    differing = {name: each for name, each in values.items() if len(set(map(repr, each))) > 1}
    return [f"{name} is {', '.join(f'{value:.6g}' for value in each)}" for name, each in differing.items()]


def named_results(kind: Kind, loader: str | None, found: Mapping[str, Any]) -> Metrics:
    """Results under their full names.

    Args:
        kind: "val" or "test".
        loader: the name of the loader, where there are several.
        found: the results by their own names; what is no text, such as the number of a class, becomes one.

    Raises:
        MetricError: one is no single number.
    """
    own = f"{kind}/"
    prefix = own if loader in (None, "") else f"{own}{loader}/"
    texts = {str(name): value for name, value in found.items()}
    return Metrics({n if n.startswith(own) else prefix + n: _number(n, value) for n, value in texts.items()})


def _number(name: str, value: Any) -> float:
    try:
        return to_float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        what = f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise MetricError(
            f"The result {name!r} is no single number ({what}). A validation returns numbers by name, such as "
            "{'accuracy': 0.9}; several of one kind have a name each."
        ) from None


def _by_name(kind: Kind, returned: Any) -> Mapping[str, Any] | None:
    if returned is None or isinstance(returned, Mapping):
        return returned
    word = {"val": "validation", "test": "test"}[kind]
    raise MetricError(
        f"The {word} returned {type(returned).__name__}, and results have names: return a mapping such as "
        "{'accuracy': 0.9}, or nothing."
    )
