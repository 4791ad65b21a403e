"""Validations, tests and predictions of a run: their context, and the names of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from hookbus._events.call_stack import current_point
from hookbus._run.requests import deliver_results
from hookbus._run.results import EvaluationKind, LogSource, check_returned, find_differences, merge_ranks, name_results
from hookbus._run.validation_contexts import ValidationContexts
from hookbus.checkpoint.saver import BestSaver
from hookbus.errors import LoopError, RequestError
from hookbus.hook import Hook
from hookbus.metrics.logged import EVALUATIONS, EvaluationMeans, LoggedResults, LogScope
from hookbus.metrics.results import Metrics

if TYPE_CHECKING:
    from hookbus._run.host import Host
    from hookbus._run.run import Run

Evaluator = Callable[["Run"], Any]
"""Function that returns the results of a validation or test, by name or None, or predictions."""


class Validations:
    """Validations, tests and predictions of a run.

    A prediction is one that has no results but the values that hooks log.

    Args:
        run: The run.
        evaluators: Validation, test or prediction function by type; None if the run has none.
        validated_at: Initial value of the attribute.

    Attributes:
        contexts: Contexts around each validation and test.
        validated_at: Number of optimizer steps at the last validation, except sanity checks; -1 for none.
        average: Name of the hook whose average is evaluated in addition to the primary one, None otherwise.
        is_executing: Whether the run executes a validation or test, as opposed to the loop.
        on_results: Function of the loop that is called with the results after each validation of its training, before
            the functions of `request_results`.
        result_requests: Pending requests of `request_results`: name of the hook, and function.
        loader_name: Name of the loader of the current or last event of a loader, None if it has none.
    """

    def __init__(self, run: Run, evaluators: Mapping[EvaluationKind, Evaluator | None], validated_at: int) -> None:
        self._run = run
        self._evaluators = evaluators
        self.contexts = ValidationContexts(run.weights)
        self._evaluation = EvaluationMeans()
        self._warned: set[str] = set()
        self._cached: dict[int, tuple[Any, Any]] = {}
        self.validated_at = validated_at
        self.is_executing = False
        self.on_results: Callable[[Metrics], object] | None = None
        self.result_requests: list[tuple[str, Callable[[Metrics], object]]] = []
        self._logged: LoggedResults | None = None  # values logged outside the loaders of the validation in progress
        self._is_measuring = False  # whether the batches of a loader are in progress
        self.loader_name: str | None = None
        self.average: str | None = None
        self._published: set[str] = set()  # results of the validation in progress that have passed `log_scalars`
        self._has_loader = False  # whether a loader of the validation in progress has begun
        self._begun: EvaluationKind | None = None  # validation that the loop performs between `begin` and `end_begun`
        self._is_requested = False  # whether a host validates because a hook requested it
        self._kept_results: Metrics | None = None  # results before a sanity check of the loop
        self._predicted = 0  # number of samples of the loader in progress whose positions are known or counted

    def is_available(self, kind: EvaluationKind) -> bool:
        """Return whether the run has a validation or test function, or a host that validates on request."""
        host = self._run.host
        is_of_host = host is not None and kind == "val" and host.capabilities.honors("validation")
        return is_of_host or self.has_evaluator(kind)

    def has_evaluator(self, kind: EvaluationKind) -> bool:
        """Return whether the loop or a hook has passed a validation, test or prediction function."""
        return self._find(kind) is not None

    def get_evaluator(self, kind: EvaluationKind) -> Evaluator:
        """Return the validation or test function.

        Raises:
            RequestError: If the run has none.
        """
        evaluator = self._find(kind)
        if evaluator is not None:
            return evaluator
        mode = "" if kind == "val" else f"(mode={kind!r})"
        raise RequestError(
            f"The run has no {EVALUATIONS[kind]} function. Pass {kind}_loader= to the Trainer, or validate= to "
            f"bus.run{mode}."
        )

    def _find(self, kind: EvaluationKind) -> Evaluator | None:
        """Return the validation function of a hook that provides one, otherwise that of the run."""
        if kind != "val":
            return self._evaluators[kind]
        hooks = {name: hook for name, hook in self._run.bus.hooks.items() if isinstance(hook, Hook)}
        provided = {name: hook.validation_fn for name, hook in hooks.items() if hook.validation_fn is not None}
        if len(provided) > 1:
            raise RequestError(
                f"{' and '.join(sorted(provided))} each provide a validation function, and a run has only one. Remove "
                "all but one of them; pass multiple datasets as a mapping of name to loader."
            )
        return next(iter(provided.values()), self._evaluators[kind])

    def execute(self, kind: Literal["val", "test"], *, sanity: bool) -> Metrics:
        """Validate or test now. Training modes, gradient mode and RNG states are restored afterwards.

        Args:
            kind: "val" or "test".
            sanity: Whether to discard the results.

        Returns:
            Results with names `val/...` or `test/...`.

        Raises:
            RequestError: If the run has no validation or test function, or one is in progress.
        """
        run = self._run
        with self._evaluating(kind, sanity) as evaluator:
            returned = check_returned(kind, evaluator(run))
            run.nesting.close(f"{kind}_epoch", metrics=returned)
            run.metrics.results |= self._sync_results(kind, None, {} if returned is None else returned)
            self._evaluate_further(kind, evaluator)
            run.nesting.close(kind)
            results = self.get_results(kind)
        if kind == "val" and not sanity:
            self.validated_at = run.clock.steps_done
        return results

    def _evaluate_further(self, kind: Literal["val", "test"], evaluator: Evaluator) -> None:
        """Evaluate the averages of further hooks, whose results have the name of the hook like that of a loader."""
        run = self._run
        names = run.weights.further if run.nesting.is_open(kind) else []
        try:
            for self.average in names:
                self.contexts.exit()
                self.contexts.enter(run.model, self.average)
                if run.auto_nesting and evaluator is self._evaluators[kind]:
                    run.nesting.auto_open(f"{kind}_epoch")
                returned = check_returned(kind, evaluator(run)) or {}
                prefix = f"{kind}/"
                returned = {str(name).removeprefix(prefix): value for name, value in returned.items()}
                run.nesting.close(f"{kind}_epoch", metrics=returned)
                run.metrics.results |= self._sync_results(kind, self.qualify(None), returned)
        finally:
            self.average = None
        if names:  # the listeners of the next point read the weights that the results without a name have
            self.contexts.exit()
            self.contexts.enter(run.model)

    def qualify(self, loader: str | None) -> str | None:
        """Return the name of a loader in the results of an average: that of the hook, or `<hook>/<loader>`."""
        average = self.average
        if average is None or loader == average or (loader or "").startswith(f"{average}/"):
            return loader
        return f"{average}/{loader}" if loader else average

    def predict(self) -> Any:
        """Predict now. Training modes, gradient mode and RNG states are restored afterwards.

        Returns:
            What the prediction function returns.

        Raises:
            RequestError: If the run has no prediction function, or an evaluation is in progress.
        """
        with self._evaluating("predict", sanity=False) as evaluator:
            predictions = evaluator(self._run)
            self._run.nesting.close("predict")
        return predictions

    @contextmanager
    def _evaluating(self, kind: EvaluationKind, sanity: bool) -> Iterator[Evaluator]:
        """Context manager in which the function that it yields is called; its points are open."""
        from hookbus._training.evaluation import eval_mode

        run, evaluator = self._run, self.get_evaluator(kind)
        if run.validating:
            raise RequestError("A validation or test is already in progress. Start another one after its end.")
        with eval_mode(run.model, run.loss), self._active(kind, sanity):
            run.nesting.auto_open(kind, caller_closes=True)
            # The function of a hook emits the events of its loaders itself; that of a custom loop may omit them.
            if run.auto_nesting and evaluator is self._evaluators[kind]:
                run.nesting.auto_open(f"{kind}_epoch")
            yield evaluator

    def execute_by_host(self, host: Host) -> None:
        """Let the host validate at a boundary, now or later."""
        self._is_requested = True
        try:
            host.validate()
        finally:
            self._is_requested = False

    def begin(self, *, sanity: bool) -> None:
        """Begin a validation, test or prediction that the loop performs itself.

        Raises:
            LoopError: If a validation or test is in progress, or it is called within an event.
        """
        run = self._run
        if run.validating:
            raise LoopError(
                "run.begin_validation: a validation or test is in progress. Call run.end_validation() first."
            )
        if (point := current_point(run)) and not self._is_requested:
            raise LoopError(f"run.begin_validation: called within {point}. Call it in the loop, between two events.")
        self._begun = "val" if run.mode == "train" else run.mode
        self._kept_results = run.metrics.results if sanity else None
        run.sanity_checking = sanity
        run.nesting.auto_open(self._begun, caller_closes=True)

    def end_begun(self, metrics: Mapping[str, Any] | None) -> None:
        """End a validation that `begin` has begun.

        Raises:
            LoopError: If there is none, or results are passed after the loop has emitted `after_val`.
        """
        kind, run = self._begun, self._run
        if kind is None:
            raise LoopError("run.end_validation: no validation was begun. Call run.begin_validation() before it.")
        if run.nesting.is_open(kind):
            if not self._has_loader:
                run.nesting.auto_open(f"{kind}_epoch")
                run.nesting.close(f"{kind}_epoch", metrics=metrics)
            run.metrics.results |= self._sync_results(kind, None, metrics or {})
            run.nesting.close(kind)
        elif metrics:
            names = ", ".join(map(repr, metrics))
            raise LoopError(
                f"run.end_validation: got {names} after after_{kind} was emitted. Pass them to after_{kind}, or leave "
                "its emission to run.end_validation."
            )
        self._begun = None

    @contextmanager
    def _active(self, kind: EvaluationKind, sanity: bool) -> Iterator[None]:
        """Mark the run as validating, and close everything that the validation opened, also after an error."""
        run, results = self._run, self._run.metrics.results
        run.validating = self.is_executing = True
        run.sanity_checking = sanity
        try:
            yield
        finally:
            self.leave()
            run.nesting.discard(kind)
            run.validating = run.sanity_checking = self.is_executing = False
            if sanity:
                run.metrics.results = results

    def get_results(self, kind: EvaluationKind) -> Metrics:
        """Return the latest results of one type."""
        return Metrics({n: v for n, v in self._run.metrics.results.items() if n.startswith(f"{kind}/")})

    # -- called at the points ----------------------------------------------------------------

    def enter(self, kind: EvaluationKind) -> None:
        """Enter the contexts of a validation; called before the listeners of `before_val` and `before_test`."""
        store = self._run.metrics
        # Removes all results of the previous validation, including those of loaders that no longer exist.
        store.results = Metrics({n: v for n, v in store.results.items() if not n.startswith(f"{kind}/")})
        self._run.journal.begin("validation")
        self._run.validating, self._has_loader = True, False
        self._published.clear()
        self._collect(LoggedResults(LogScope(kind)))
        self._run.boundary_state.record_hooks()
        self._watch_weights(kind)
        self.contexts.enter(self._run.model)

    def leave(self) -> None:
        """Exit the contexts of a validation; called after the listeners of `after_val` and `after_test`. Idempotent."""
        self._collect(None)
        self._run.journal.end("validation")
        self._run.clock.leave_evaluation()
        self.result_requests.clear()
        self._run.validating = self.is_executing
        if not self.is_executing:
            self._run.sanity_checking = False
        if self._kept_results is not None:
            self._run.metrics.results, self._kept_results = self._kept_results, None
        self._run.participants.end_waiting("evaluation")
        self.contexts.exit()

    def begin_loader(self, kind: EvaluationKind, name: str | None) -> None:
        """Reset the means of a loader; called before the listeners of `before_val_epoch`."""
        self._run.clock.batch, self._has_loader, self._predicted = -1, True, 0
        self.loader_name = name
        self._evaluation, self._is_measuring = EvaluationMeans(self._get_scope(kind, name)), True
        self._run.metrics.evaluation = self._evaluation

    def begin_batch(self, kind: EvaluationKind, batch_idx: int | None, batch: Any, name: str | None) -> None:
        """Record the index and the size of a batch; called before the listeners of `before_val_iter`."""
        self._ensure_loader(kind, name)
        self.loader_name = name
        self._run.clock.set_batch(batch_idx, opening=True)
        self._measure(batch)

    def end_batch(
        self, kind: EvaluationKind, batch_idx: int | None, batch: Any, outputs: Any, loss: Any, name: str | None
    ) -> None:
        """Add the outputs of a batch, weighted by its size; called before the listeners of `after_val_iter`."""
        self._ensure_loader(kind, name)
        self.loader_name = name
        # A custom loop may emit `after_val_iter` only, or pass the batch only there.
        if not self._run.clock.mid_iteration or self._evaluation.weight is None:
            self._measure(batch)
        self._run.clock.set_batch(batch_idx, opening=False)
        self._run.metrics.log_outputs(outputs, loss)

    def end_prediction(
        self, batch_idx: int | None, batch: Any, indices: Sequence[int] | None, name: str | None
    ) -> Sequence[int] | None:
        """End a batch of a prediction; called before the listeners of `after_predict_iter`.

        Returns:
            Positions of the samples in the data, counted on this rank if they are not passed; None if the number of
            samples is unknown.
        """
        self.end_batch("predict", batch_idx, batch, None, None, name)
        if indices is None and (count := self.batch_samples) is not None:
            indices = range(self._predicted, self._predicted + count)
        self._predicted += 0 if indices is None else len(indices)
        return indices

    @property
    def batch_samples(self) -> int | None:
        """Number of samples of the current batch, None if it is unknown."""
        return self._evaluation.weight

    def _measure(self, batch: Any) -> None:
        """Begin a batch with its number of samples as its weight."""
        self._evaluation.begin_batch(None if batch is None else self._run.batch_sizes.measure(batch))

    def end_loader(self, kind: EvaluationKind, metrics: Mapping[str, Any] | None, name: str | None) -> Metrics:
        """Add the results of a loader under their full names; called before the listeners of `after_val_epoch`.

        Args:
            kind: "val", "test" or "predict".
            metrics: Results of the loop. They have precedence over the means of logged values.
            name: Name of the loader if there are multiple loaders.

        Returns:
            Results by full name, equal on all ranks.
        """
        self.loader_name = name
        named = self._take_means(kind, name, metrics)
        self._run.metrics.evaluation = LoggedResults(self._get_scope(kind, name), set(named))
        self._capture_weights(kind)
        return named

    def close_loader(self, kind: EvaluationKind, name: str | None) -> None:
        """Add the values that listeners of `after_val_epoch` have logged, and log the results; called after them."""
        self._take_logged(kind)
        self._publish(kind, name)
        self._collect(self._logged)

    def end(self, kind: EvaluationKind, metrics: Mapping[str, Any] | None) -> None:
        """Add the results that the loop passes; called before the listeners of `after_val` and `after_test`."""
        if self._is_measuring:  # a loop that does not emit `after_val_epoch`
            self._take_means(kind, None, None)
        self._run.validating = True
        self._collect(self._logged)
        self._take_logged(kind)
        if metrics:
            self._run.metrics.results |= self._sync_results(kind, None, metrics)
        self._collect(LoggedResults(self._get_scope(kind, None), set(self.get_results(kind))))
        self._capture_weights(kind)

    def finish(self, kind: EvaluationKind) -> None:
        """Deliver the complete results to those who requested them, and leave; called after all listeners."""
        run = self._run
        if run.weights.further and not self.is_executing:
            self.warn_once(
                "The loop performs its validations itself, which evaluate one average: those of %s have no results. "
                "Pass `validate` to bus.run, and request validations.",
                ", ".join(map(repr, run.weights.further)),
            )
        self._take_logged(kind)
        self._publish(kind, None)
        run.history_recorder.record_results(kind, self.get_results(kind))
        if self._begun == "val" and not run.sanity_checking:
            self.validated_at = run.clock.steps_done
        if kind == "val" and run.mode == "train" and not run.sanity_checking and self.on_results is not None:
            self.on_results(run.metrics.results)
        self._capture_weights(kind)
        requests, self.result_requests = self.result_requests, []
        deliver_results(run, requests, self.get_results(kind))
        self.leave()

    def cached_loader(self, loader: Any, make: Callable[[], Any]) -> Any:
        """Return the loader that is derived from a loader, once per run if its workers are persistent.

        Args:
            loader: Validation loader.
            make: Function that derives a loader.
        """
        # Other loaders are cheap to create, and end their workers after each validation.
        if not getattr(loader, "persistent_workers", False):
            return make()
        if id(loader) not in self._cached:
            self._cached[id(loader)] = loader, make()  # the reference to the loader keeps its ID unique
        return self._cached[id(loader)][1]

    def close(self) -> None:
        """Release the cached loaders and thereby end their workers."""
        self._cached.clear()

    def warn_once(self, message: str, *values: object) -> None:
        """Log a warning once per run.

        Args:
            message: Format string.
            values: Arguments of the format string.
        """
        if message not in self._warned:
            self._warned.add(message)
            self._run.logger.warning(message, *values)

    def _sync_results(self, kind: EvaluationKind, loader: str | None, results: Mapping[str, Any]) -> Metrics:
        """Return results under their full names, with the values of rank 0 on all ranks. A collective call."""
        by_rank = self._run.ranks.all_gather("results of the loop", dict(name_results(kind, loader, results)))
        self._warn_differing(find_differences(by_rank))
        # Equal values on all ranks: decisions such as early stopping would otherwise diverge and deadlock.
        return Metrics(by_rank[0])

    def _ensure_loader(self, kind: EvaluationKind, name: str | None) -> None:
        """Begin a loader in a validation whose loop does not emit `before_val_epoch`."""
        if self._run.validating and not self._is_measuring:
            self.begin_loader(kind, name)

    def _get_scope(self, kind: EvaluationKind, name: object) -> LogScope:
        loaders = getattr(self._run, f"{kind}_loader")
        return LogScope(kind, name, list(loaders) if isinstance(loaders, Mapping) else ())

    def _collect(self, logged: LoggedResults | None) -> None:
        """Direct logged values to the validation as a whole; None for those of training."""
        self._logged, self._is_measuring = logged, False
        self._run.metrics.evaluation = logged

    def _take_means(self, kind: EvaluationKind, name: str | None, metrics: Mapping[str, Any] | None) -> Metrics:
        """Add the results of a loader, and return them by full name."""
        means, self._evaluation = self._evaluation.results(self._run.ranks), EvaluationMeans()
        self._is_measuring = False
        named = self._sync_results(kind, name, {**means, **(metrics or {})})
        self._run.metrics.results |= named
        return named

    def _take_logged(self, kind: EvaluationKind) -> None:
        """Add the values that were logged outside the batches. A collective call."""
        store = self._run.metrics
        own = store.evaluation.take() if isinstance(store.evaluation, LoggedResults) else {}
        logged, differing = merge_ranks(self._run.ranks.all_gather("logged results", own))
        self._warn_differing(differing)
        existing = set(store.results)  # results of the loop have precedence over values logged before them
        store.results |= {name: value for name, value in logged.items() if name not in existing}

    def _capture_weights(self, kind: EvaluationKind) -> None:
        """Copy weights that a hook has exchanged, if the results so far are the best ones; those of an average aside.

        Called before the listeners of the points that end a loader and a validation, which may restore the weights.
        """
        run, weights = self._run, self._run.weights.evaluated
        if kind != "val" or self.average is not None or not weights.may_capture:
            return
        results = self.get_results(kind)
        if any(saver.improves(run, results) for saver in self._find_savers()) and (text := weights.capture(run.ranks)):
            self.warn_once("%s", text)

    def _watch_weights(self, kind: EvaluationKind) -> None:
        """Decide at the start of an evaluation whether a best file may contain its weights."""
        run, weights = self._run, self._run.weights.evaluated
        is_counted = kind == "val" and run.mode == "train" and not run.sanity_checking
        weights.is_watching = is_counted and bool(self._find_savers())
        if is_counted:
            weights.release()

    def _find_savers(self) -> list[BestSaver]:
        return [hook for hook in self._run.bus.hooks.values() if isinstance(hook, BestSaver)]

    def _publish(self, kind: EvaluationKind, loader: str | None) -> None:
        """Log the results that have not been logged in this validation, except those of a sanity check."""
        results = self.get_results(kind)
        new = {name: value for name, value in results.items() if name not in self._published}
        self._published.update(new)
        if not self._run.sanity_checking:
            self._run.recording.publish(new, self._run.steps_done, LogSource(kind, loader))

    def _warn_differing(self, differing: list[str]) -> None:
        """Log a warning, once per run, for results that differ between ranks."""
        if differing:
            self.warn_once(
                "Validation results differ across ranks, and the values of rank 0 are used: %s. Reduce the metrics of "
                "a custom loop over all ranks: sum totals and counts with run.ranks.all_gather.",
                "; ".join(differing),
            )
