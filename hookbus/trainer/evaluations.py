"""Validations, tests and predictions of the Trainer, which are runs of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, overload

from hookbus._training.output_collector import OutputCollector
from hookbus._utils.arguments import check_bool, check_keywords, check_loader, raise_config_error
from hookbus.metrics.results import Metrics
from hookbus.trainer.initial_weights import load_initial_weights
from hookbus.trainer.setup import TrainerSetup


class TrainerEvaluations(TrainerSetup):
    """Evaluate a model and emit the events of the run."""

    @overload
    def validate(self, *, return_outputs: Literal[False] = False) -> Metrics: ...

    @overload
    def validate(self, *, return_outputs: Literal[True]) -> tuple[Metrics, Any]: ...

    @check_keywords("Trainer.validate")
    def validate(self, *, return_outputs: bool = False) -> Metrics | tuple[Metrics, Any]:
        """Run a validation.

        Args:
            return_outputs: Whether to return the outputs of the model as well. Default: False.

        Returns:
            Results by name, `val/...`; with `return_outputs` a pair of them and of the outputs of all samples, as
            `predict` returns them.

        Raises:
            RequestError: If there is no `val_loader`.
            LoopError: If the outputs are returned, and contain no value for each sample.
        """
        return self._evaluate("val", return_outputs)

    @overload
    def test(self, *, return_outputs: Literal[False] = False) -> Metrics: ...

    @overload
    def test(self, *, return_outputs: Literal[True]) -> tuple[Metrics, Any]: ...

    @check_keywords("Trainer.test")
    def test(self, *, return_outputs: bool = False) -> Metrics | tuple[Metrics, Any]:
        """Run a test, with averaged weights if a hook maintains an average.

        Args:
            return_outputs: Whether to return the outputs of the model as well. Default: False.

        Returns:
            Results by name, `test/...`; with `return_outputs` a pair of them and of the outputs, as in `validate`.

        Raises:
            RequestError: If there is no `test_loader`.
            LoopError: As in `validate`.
        """
        return self._evaluate("test", return_outputs)

    @check_keywords("Trainer.predict")
    def predict(
        self,
        loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        *,
        return_predictions: bool = True,
    ) -> Any:
        """Predict each sample of a loader once, in evaluation mode and without gradients and loss.

        Averaged weights are used if a hook maintains an average. A map-style dataset is read in its own order, also if
        the loader shuffles or drops its last batch.

        Args:
            loader: Batches, with or without targets, or a mapping of names to loaders. Default: `predict_loader`.
            return_predictions: Whether to return the predictions, which every rank has in memory then. If False, the
                memory is constant, and hooks receive each batch at `after_predict_iter`. Default: True.

        Returns:
            Outputs of all samples on the CPU, in the order of the data and equal on all ranks: the tensors of shape
            (N, ...), or lists of N values, of the model, in the same mappings and tuples. Outputs whose shapes differ
            between batches are lists. With named loaders, a mapping of names to them. None without
            `return_predictions`.

        Raises:
            RequestError: If there is no loader.
            LoopError: If the outputs contain no value for each sample, or the loader has no batches.
        """
        raise_config_error([check_loader("loader", loader), check_bool("return_predictions", return_predictions)])
        own = self.predict_loader
        self.predict_loader = own if loader is None else loader
        collector = self._create_collector() if return_predictions else None
        try:
            with self.runs.run_scope("predict", collector) as run:
                load_initial_weights(self, run)
                run.predict()
                return None if collector is None else collector.gather(run.ranks)
        finally:
            self.predict_loader = own

    def _evaluate(self, mode: Literal["val", "test"], return_outputs: bool) -> Metrics | tuple[Metrics, Any]:
        raise_config_error([check_bool("return_outputs", return_outputs)])
        collector = self._create_collector() if return_outputs else None
        with self.runs.run_scope(mode, collector) as run:
            load_initial_weights(self, run)
            metrics = run.validate() if mode == "val" else run.test()
            return metrics if collector is None else (metrics, collector.gather(run.ranks))

    def _create_collector(self) -> OutputCollector:
        return OutputCollector(lambda *message: self.bus.current.validations.warn_once(*message))
