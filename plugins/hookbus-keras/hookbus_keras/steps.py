"""Points of the iterations of a Keras model, emitted by wrappers of the methods that `fit` and `evaluate` call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras

from hookbus_keras.optimizer import UpdateCounter, get_inner_optimizer

if TYPE_CHECKING:
    from hookbus_keras.bridge import KerasBridge

Method = Callable[..., Any]


class SkippedIterationError(Exception):
    """Leaves `train_step` after the forward, in an iteration that a hook skips."""


class Steps:
    """Wrappers of the methods of a model, which emit the points of its iterations.

    Args:
        bridge: The bridge of the model.

    Attributes:
        wrappers: Functions that wrap a method, by the name of the method.
    """

    def __init__(self, bridge: KerasBridge) -> None:
        self._bridge, self._bus, self._model = bridge, bridge.bus, bridge.host
        self.wrappers: dict[str, Callable[[Method], Method]] = {
            "train_step": self._wrap_train_step,
            "test_step": self._wrap_test_step,
            "compute_loss": self._wrap_compute_loss,
        }
        self._updates: UpdateCounter | None = None
        self._optimizers: list[Any] = []  # those that are wrapped
        self._batch: Any = None
        self._outputs: dict[str, Any] | None = None
        self._in_train_step = False
        self._has_warned = False

    def begin_training(self, optimizer: Any) -> None:
        """Count the updates of an optimizer from now on.

        Args:
            optimizer: Optimizer of the model, which `compile` may have replaced since the last training.
        """
        inner = get_inner_optimizer(optimizer)
        self._updates = UpdateCounter(inner)
        if any(wrapped is optimizer for wrapped in self._optimizers):
            return
        self._optimizers.append(optimizer)
        # The inner optimizer of one that scales the loss is not called in a step that it skips.
        self._bridge.replace(inner, "apply", self._wrap_update)
        self._bridge.replace(optimizer, "apply", self._wrap_apply)

    # -- training --------------------------------------------------------------------------------

    def _wrap_train_step(self, original: Method) -> Method:
        def train_step(data: Any) -> Any:
            return self._train(original, data) if self._bridge.is_training else original(data)

        return train_step

    def _train(self, original: Method, data: Any) -> Any:
        """Execute a training step between the points of its iteration. Return the metrics of the model."""
        bus, run = self._bus, self._bridge.active_run
        self._outputs = None
        bus.emit("before_train_iter", batch=data)
        self._batch = run.resolve_batch(data)
        logs = self._model.get_metrics_result() if run.should_skip_iter else self._step(original)
        bus.emit("after_train_iter", batch=self._batch, outputs=detach(self._outputs))
        self._batch = self._outputs = None
        return logs

    def _step(self, original: Method) -> Any:
        self._in_train_step = True
        try:
            logs = original(self._batch)
        except SkippedIterationError:
            return self._model.get_metrics_result()
        finally:
            self._in_train_step = False
        if self._outputs is None:
            self._warn_without_loss()
        return logs

    def _warn_without_loss(self) -> None:
        """Log a warning, once, for a model whose own `train_step` computes the loss elsewhere."""
        if not self._has_warned:
            self._has_warned = True
            self._bridge.active_run.logger.warning(
                "train_step: %s does not call compute_loss, so hooks receive neither the loss nor the outputs, and "
                "after_forward is not emitted. Compute the loss in an override of compute_loss.",
                type(self._model).__name__,
            )

    def _wrap_compute_loss(self, original: Method) -> Method:
        def compute_loss(x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
            loss = original(x, y, y_pred, *args, **kwargs)
            if not self._bridge.is_open:
                return loss
            self._outputs = (
                {**y_pred, "loss": loss} if isinstance(y_pred, Mapping) else {"loss": loss, "output": y_pred}
            )
            return self._end_forward(loss) if self._in_train_step else loss

        return compute_loss

    def _end_forward(self, loss: Any) -> Any:
        """Emit `after_forward`, and return the loss, which a hook may have replaced."""
        run, outputs = self._bridge.active_run, self._outputs
        self._bus.emit("after_forward", batch=self._batch, outputs=outputs, loss=loss)
        if run.should_skip_iter:
            raise SkippedIterationError
        assert outputs is not None
        outputs["loss"] = run.resolve_loss(loss)
        return outputs["loss"]

    def _wrap_apply(self, original: Method) -> Method:
        def apply(*args: Any, **kwargs: Any) -> Any:
            if self._in_train_step:
                loss = self._outputs["loss"] if self._outputs else None
                self._bus.emit("after_backward", batch=self._batch, outputs=self._outputs, loss=loss)
            return original(*args, **kwargs)

        return apply

    def _wrap_update(self, original: Method) -> Method:
        def apply(*args: Any, **kwargs: Any) -> Any:
            assert self._updates is not None
            if not (self._updates.advance() and self._in_train_step):
                return original(*args, **kwargs)
            self._bus.emit("before_optimizer_step")
            result = original(*args, **kwargs)
            self._bus.emit("after_optimizer_step")
            return result

        return apply

    # -- validations and tests -------------------------------------------------------------------

    def _wrap_test_step(self, original: Method) -> Method:
        def test_step(data: Any) -> Any:
            if not (self._bridge.is_open and self._bridge.active_run.validating):
                return original(data)
            part = self._bridge.evaluated_part
            self._outputs = None
            self._bridge.emit(f"before_{part}_iter", batch=data)
            logs = original(data)
            self._bridge.emit(f"after_{part}_iter", batch=data, outputs=detach(self._outputs))
            return logs

        return test_step


def detach(outputs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return outputs without their graph, which is freed even if a hook stores them; None without outputs."""
    if outputs is None:
        return None
    detached: dict[str, Any] = keras.tree.map_structure(_detach_tensor, dict(outputs))
    return detached


def _detach_tensor(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value
