"""Points within an iteration, which are emitted when the model updates its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookbus_mmengine.bridge import MMEngineBridge


class Updates:
    """Emit `after_forward` and `after_backward`, and carry out skips and replacements, within `model.train_step`.

    Args:
        bridge: The bridge.
        model: Model of the Runner, or its wrapper for multiple processes.
    """

    def __init__(self, bridge: MMEngineBridge, model: Any) -> None:
        self._bridge, self._model = bridge, model
        self._emit = bridge.bus.emit
        self._loss: Any = None  # the loss of `after_forward`, until its backward

    def attach(self, wrappers: Mapping[str, Any]) -> None:
        """Observe the model and its optimizers.

        Args:
            wrappers: Optimizer wrappers by name.
        """
        self._bridge.replace(self._model, "train_step", self._wrap_step)
        for wrapper in wrappers.values():
            self._bridge.replace(wrapper, "update_params", self._wrap_update)
            self._bridge.replace(wrapper, "backward", self._wrap_backward)

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a `train_step` that a hook can skip, and whose batch it can replace."""

        def train_step(data: Any, *args: Any, **kwargs: Any) -> Any:
            run = self._bridge.active_run
            return {} if run.should_skip_iter else original(run.resolve_batch(data), *args, **kwargs)

        return train_step

    def _wrap_update(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return an `update_params` that emits `after_forward` with the loss before its division for accumulation."""

        def update_params(loss: Any, *args: Any, **kwargs: Any) -> None:
            self._emit("after_forward", batch=self._bridge.batch, loss=loss)
            run = self._bridge.active_run
            if not run.should_skip_iter:
                self._loss = loss = run.resolve_loss(loss)
                original(loss, *args, **kwargs)

        return update_params

    def _wrap_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a `backward` that emits `after_backward`, also in a model that calls it without `update_params`."""

        def backward(loss: Any, **kwargs: Any) -> None:
            batch = self._bridge.batch
            if self._loss is None:
                self._emit("after_forward", batch=batch, loss=loss)
                self._loss = loss = self._bridge.active_run.resolve_loss(loss)
            original(loss, **kwargs)
            loss, self._loss = self._loss, None
            self._emit("after_backward", batch=batch, loss=loss)

        return backward
