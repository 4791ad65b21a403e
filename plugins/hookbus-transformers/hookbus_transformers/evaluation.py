"""Evaluations of the Trainer during its training, as validations of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus_transformers.outputs import get_argument, name_outputs

if TYPE_CHECKING:
    from hookbus_transformers.bridge import TransformersBridge

TIMINGS = frozenset(
    {"runtime", "samples_per_second", "steps_per_second", "jit_compilation_time", "model_preparation_time"}
)
"""Results that describe the machine and not the model."""


class Evaluations:
    """Evaluations of a Trainer, from methods that replace its own.

    Args:
        bridge: Bridge of the Trainer.

    Attributes:
        is_computing: Whether the forward of a batch is in progress.
    """

    def __init__(self, bridge: TransformersBridge) -> None:
        self._bridge = bridge
        self.reset()

    def reset(self) -> None:
        """Begin a new training."""
        self.is_computing = self._is_reading = False
        self._loader: str | None = None
        self._outputs: Any = None
        self._prefix = ""  # of the evaluation in progress, "" if there is none

    def evaluate(self, original: Callable[..., dict[str, Any]], *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Replace `Trainer.evaluate`, which calls itself for each of several datasets."""
        bridge = self._bridge
        prefix = get_argument(original, "metric_key_prefix", args, kwargs, "eval")
        if self._prefix:
            return self._read(original, prefix, prefix.removeprefix(f"{self._prefix}_"), *args, **kwargs)
        # Another prefix is that of another dataset, such as a test.
        if not bridge.is_open or not bridge.is_validation(f"{prefix}_"):
            return original(*args, **kwargs)
        dataset = get_argument(original, "eval_dataset", args, kwargs)
        dataset = bridge.host.eval_dataset if dataset is None else dataset
        bridge.begin_evaluation()
        self._prefix = prefix
        try:
            if isinstance(dataset, dict):
                metrics = original(*args, **kwargs)
            else:
                metrics = self._read(original, prefix, None, *args, **kwargs)
        finally:
            self._prefix = ""
        bridge.end_evaluation()
        return metrics

    def _read(
        self, original: Callable[..., dict[str, Any]], prefix: str, loader: str | None, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Evaluate one dataset, and emit the events of its loader."""
        bus = self._bridge.bus
        bus.emit("before_val_epoch", dataloader_name=loader)
        self._loader, self._is_reading = loader, True
        try:
            metrics = original(*args, **kwargs)
        finally:
            self._is_reading = False
        bus.emit("after_val_epoch", metrics=_select_results(metrics, prefix), dataloader_name=loader)
        return metrics

    def prediction_step(
        self, original: Callable[..., tuple[Any, Any, Any]], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """Replace `Trainer.prediction_step`: emit the events of a batch."""
        if not self._is_reading:
            return original(model, inputs, *args, **kwargs)
        bus, loader = self._bridge.bus, self._loader
        bus.emit("before_val_iter", batch=inputs, dataloader_name=loader)
        self.is_computing = True
        try:
            results = original(model, inputs, *args, **kwargs)
        finally:
            self.is_computing = False
        outputs, self._outputs = self._outputs, None
        loss, logits, _ = results
        named = name_outputs(loss, {"logits": logits} if outputs is None and logits is not None else outputs)
        if loss is None:
            del named["loss"]
        bus.emit("after_val_iter", batch=inputs, outputs=named, dataloader_name=loader)
        return results

    def receive_outputs(self, outputs: Any) -> None:
        """Receive the outputs of the model, which `prediction_step` returns only if there are metrics to compute."""
        self._outputs = outputs


def _select_results(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the numbers among the metrics of an evaluation without their prefix, and without timings."""
    named = {name.removeprefix(f"{prefix}_"): value for name, value in metrics.items() if name.startswith(f"{prefix}_")}
    return {name: value for name, value in named.items() if name not in TIMINGS and isinstance(value, (int, float))}
