"""End of a training whose weights are corrupted, after which Lightning neither validates nor saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookbus.errors import CheckpointRefusedError
from hookbus_lightning.callback import get_package

if TYPE_CHECKING:
    from hookbus_lightning.bridge import LightningBridge

SAVE_POINTS = ("on_train_batch_end", "on_train_epoch_end", "on_validation_end", "on_train_end")
"""Methods in which callbacks save checkpoints of a training that does not fail."""


class SavingCallbacks:
    """Callbacks of Lightning that save checkpoints, such as `ModelCheckpoint`.

    Args:
        bridge: Bridge of the training.
    """

    def __init__(self, bridge: LightningBridge) -> None:
        self._bridge = bridge
        self._package = import_module(f"{get_package(bridge.host)}.callbacks")
        for callback in bridge.host.callbacks:
            if isinstance(callback, self._package.Checkpoint):
                for name in SAVE_POINTS:
                    bridge.replace(callback, name, partial(self._wrap, callback))

    def _wrap(self, callback: Any, original: Callable[..., None]) -> Callable[..., None]:
        """Return a method of a callback that ends without an effect if a hook refuses the checkpoint."""

        def call(*args: Any, **kwargs: Any) -> None:
            # The callback names the checkpoint before it saves, and removes the previous one afterwards.
            state = {name: _copy(value) for name, value in callback.state_dict().items()}
            with self._bridge.omit_refused_save():
                try:
                    original(*args, **kwargs)
                except CheckpointRefusedError:
                    callback.load_state_dict(state)
                    raise

        return call

    def discard_weights(self) -> None:
        """Prevent validations and checkpoints until the run ends.

        A checkpoint could replace a valid one. What depends on a validation is omitted as well: `EarlyStopping` and
        `ReduceLROnPlateau` raise without its results.
        """
        bridge, trainer = self._bridge, self._bridge.host
        bridge.replace(trainer, "limit_val_batches", lambda _: 0)
        bridge.replace(trainer.fit_loop.epoch_loop, "update_lr_schedulers", _omit)
        for callback in trainer.callbacks:
            if isinstance(callback, (self._package.Checkpoint, self._package.EarlyStopping)):
                for name in dir(self._package.Callback):
                    if name.startswith("on_"):
                        bridge.replace(callback, name, _omit)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _omit(_: Any) -> Any:
    return lambda *args, **kwargs: None
