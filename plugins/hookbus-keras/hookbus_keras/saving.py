"""Callbacks of Keras that save the model, in a training that a hook may abort because the weights are corrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from hookbus_keras.bridge import KerasBridge

NAMES = ("BackupAndRestore", "ModelCheckpoint", "OrbaxCheckpoint")
SAVE_POINTS = ("on_train_batch_end", "on_epoch_end")


class SavingCallbacks:
    """Callbacks of one call of `fit` that save the model.

    Args:
        bridge: Bridge of the model.
        callbacks: Callbacks of the call.
    """

    def __init__(self, bridge: KerasBridge, callbacks: Iterable[Any]) -> None:
        self._bridge = bridge
        classes = tuple(getattr(keras.callbacks, name) for name in NAMES if hasattr(keras.callbacks, name))
        self._callbacks = [callback for callback in callbacks if isinstance(callback, classes)]
        self._is_discarding = False

    def discard_weights(self) -> None:
        """Prevent that the callbacks save the weights, or delete a backup at the end of the training."""
        self._is_discarding = True

    @contextmanager
    def connect(self) -> Iterator[None]:
        """Context manager of the call of `fit`."""
        with ExitStack() as stack:
            for callback in self._callbacks:
                for name in SAVE_POINTS:
                    _replace(stack, callback, name, self._guard(getattr(callback, name)))
                if isinstance(callback, keras.callbacks.BackupAndRestore):
                    _replace(stack, callback, "on_train_end", self._guard(callback.on_train_end))
            yield

    def _guard(self, original: Callable[..., None]) -> Callable[..., None]:
        """Return a method of a callback that has no effect if the weights are corrupted."""

        def method(*args: Any, **kwargs: Any) -> None:
            if not self._is_discarding:
                with self._bridge.omit_refused_save():
                    original(*args, **kwargs)

        return method


def _replace(stack: ExitStack, callback: Any, name: str, method: Callable[..., None]) -> None:
    setattr(callback, name, method)
    stack.callback(delattr, callback, name)
