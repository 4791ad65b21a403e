"""Callback of Keras that reports the epochs and validations of `fit`, and the tests of `evaluate`, to the bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from hookbus_keras.bridge import KerasBridge


class RunCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Callback of one call of `fit` or `evaluate`. It precedes those of the user, which see the complete epoch.

    Args:
        bridge: The bridge of the model.
    """

    def __init__(self, bridge: KerasBridge) -> None:
        super().__init__()
        self._bridge = bridge

    def on_train_begin(self, logs: Any = None) -> None:
        """Resume from a checkpoint of hookbus, which decides the first epoch."""
        if self._bridge.checkpoints == "hookbus":
            self._bridge.begin_training(self._bridge.initial_epoch, self.params)
            # Keras reads it after this event. Set for this call of `fit` only, see `KerasBridge`.
            self._bridge.host._initial_epoch = self._bridge.active_run.epochs_done or None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the run with the first epoch, after other callbacks have loaded weights in `on_train_begin`."""
        if not self._bridge.is_open:
            self._bridge.begin_training(epoch, self.params)
        self._bridge.begin_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch, after its validation and before other callbacks save the model."""
        self._bridge.end_epoch_iterations()
        self._bridge.bus.emit("after_epoch")

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin a validation of `fit`, or a test."""
        self._bridge.end_epoch_iterations()
        self._bridge.begin_evaluation()

    def on_test_end(self, logs: Any = None) -> None:
        """End a validation or test with the results of Keras."""
        self._bridge.end_evaluation(logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        """End the run."""
        self._bridge.end_training()
