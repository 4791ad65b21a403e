"""End of a training whose weights are corrupted, after which Lightning neither validates nor saves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookbus_lightning.callback import get_package

if TYPE_CHECKING:
    from hookbus_lightning.bridge import LightningBridge


def discard_weights(bridge: LightningBridge) -> None:
    """Prevent validations and checkpoints until the run of a bridge ends.

    A checkpoint could replace a valid one. What depends on a validation is omitted as well: `EarlyStopping` and
    `ReduceLROnPlateau` raise without its results.

    Args:
        bridge: Bridge of a training that ends after this iteration.
    """
    trainer = bridge.host
    bridge.replace(trainer, "limit_val_batches", lambda _: 0)
    bridge.replace(trainer.fit_loop.epoch_loop, "update_lr_schedulers", _omit)
    callbacks = import_module(f"{get_package(trainer)}.callbacks")
    for callback in trainer.callbacks:
        if isinstance(callback, (callbacks.Checkpoint, callbacks.EarlyStopping)):
            for name in dir(callbacks.Callback):
                if name.startswith("on_"):
                    bridge.replace(callback, name, _omit)


def _omit(_: Any) -> Any:
    return lambda *args, **kwargs: None
