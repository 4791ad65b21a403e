"""Callback of the Trainer that reports the beginnings and ends of its loops to the bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import DefaultFlowCallback

if TYPE_CHECKING:
    from hookbus_transformers.bridge import TransformersBridge


class BridgeCallback(TrainerCallback):  # type: ignore[misc]
    """Forward the callbacks of a Trainer to a bridge.

    Args:
        bridge: Bridge of the Trainer.
    """

    def __init__(self, bridge: TransformersBridge) -> None:
        self._bridge = bridge

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Begin the run: model and optimizer are prepared, and the checkpoint of a resumed training is loaded."""
        self._bridge.begin_training(train_dataloader)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin an epoch."""
        self._bridge.begin_epoch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Hold back the step of a group whose micro-batches were all skipped."""
        self._bridge.steps.begin_step()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the iteration of an optimizer step, before its gradients are zeroed."""
        self._bridge.steps.end_iteration()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End an iteration without an optimizer step."""
        self._bridge.steps.end_iteration()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore a step that was held back."""
        self._bridge.steps.end_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the training part of an epoch; a validation may follow."""
        self._bridge.end_train_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report a complete checkpoint."""
        self._bridge.end_save()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the run."""
        self._bridge.end_training()


def insert_callback(trainer: Any, callback: BridgeCallback) -> None:
    """Insert a callback after `DefaultFlowCallback`, which schedules evaluations and saves, before all others."""
    callbacks = trainer.callback_handler.callbacks
    flows = [position for position, other in enumerate(callbacks) if isinstance(other, DefaultFlowCallback)]
    callbacks.insert(flows[0] + 1 if flows else 0, callback)
