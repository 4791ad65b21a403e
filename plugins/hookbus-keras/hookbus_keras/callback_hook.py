"""Hook that executes an unchanged callback of Keras in a training of hookbus."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import keras

from hookbus import Hook, HookConfig, Needs, Run
from hookbus.distributed import world_size
from hookbus.errors import ConfigError
from hookbus_keras.model_view import ModelView

REFUSED = {
    "BackupAndRestore": "saves a model of Keras. Use CheckpointHook, and resume='auto'",
    "ModelCheckpoint": "saves a model of Keras. Use CheckpointHook",
    "OrbaxCheckpoint": "saves a model of Keras. Use CheckpointHook",
    "SwapEMAWeights": "averages in an optimizer of Keras. Use EMAHook",
    "TensorBoard": "requires TensorFlow and a model of Keras. Use TensorboardHook",
}
"""Callbacks of Keras that cannot work, with the reason and the hook to use instead."""

BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


class KerasCallbackConfig(HookConfig):
    """Settings of all hooks, except the schedules."""

    frequency_error = "the callback is called as in Keras. Remove `frequency`."
    when_error = "the callback is called as in Keras. Remove `when`."


class KerasCallbackHook(Hook):
    """Callback of Keras in a Trainer or a custom loop. It receives a view of the model, see `ModelView`.

    As in Keras, the state of a callback is not saved, and is re-initialized at the start of each training. A callback
    with methods for batches receives the loss as a number, which synchronizes with the device in each iteration.

    Args:
        callback: Callback of Keras, whose model in the training is a `ModelView`.
        settings: Settings of all hooks, such as `name` and `priority`.

    Raises:
        ConfigError: If it is not a callback, or one that requires a model of Keras.
    """

    Config = KerasCallbackConfig

    def __init__(self, callback: keras.callbacks.Callback, **settings: Any) -> None:
        check_callback(callback)
        super().__init__({"name": type(callback).__name__, **settings})
        self.callback = callback
        self._wants_batches = any(is_overridden(callback, name) for name in BATCH_METHODS)
        self._logs: dict[str, float] = {}

    @property
    def needs(self) -> Needs:
        """Losses, for a callback with methods for batches."""
        return Needs(loss=self._wants_batches)

    @property
    def required_metrics(self) -> Collection[str]:
        """Metric of a validation that the callback monitors."""
        monitor = getattr(self.callback, "monitor", "")
        return (monitor,) if monitor.startswith("val_") else ()

    def check(self, run: Run) -> None:
        """Check that the run has a model and one rank, and that the callback knows the direction of its metric.

        Raises:
            ConfigError: If not.
        """
        if run.model is None:
            raise ConfigError(["requires the model of the run, got None. Pass `model` to the run."])
        monitor = getattr(self.callback, "monitor", "")
        if getattr(self.callback, "mode", "") == "auto" and monitor.removeprefix("val_") != "loss":
            raise ConfigError([f"mode: should be 'min' or 'max' for monitor={monitor!r}, got 'auto'. Pass it."])
        if world_size() > 1:
            raise ConfigError([f"ranks: callbacks of Keras support one, got {world_size()}. Remove the hook."])

    # -- points ----------------------------------------------------------------------------------

    def before_train(self, run: Run) -> None:
        """Call `on_train_begin`."""
        if run.iters_done:
            run.logger.warning(
                "hook %r: the callback starts from scratch, because it has no state in checkpoints.", self.name
            )
        self.callback.set_model(ModelView(run, type(self.callback).__name__))
        self.callback.set_params({"epochs": run.max_epochs, "steps": run.epoch_length, "verbose": 1})
        self.callback.on_train_begin(None)

    def before_epoch(self, epoch: int) -> None:
        """Call `on_epoch_begin`."""
        self._logs = {}
        self.callback.on_epoch_begin(epoch, None)

    def before_train_iter(self, batch_idx: int) -> None:
        """Call `on_train_batch_begin`, if the callback has it."""
        if self._wants_batches:
            self.callback.on_train_batch_begin(batch_idx, None)

    def after_train_iter(self, batch_idx: int, loss: Any) -> None:
        """Call `on_train_batch_end` with the loss of the batch, if the callback has it."""
        if self._wants_batches:
            self.callback.on_train_batch_end(batch_idx, {} if loss is None else {"loss": float(loss)})

    def after_train_epoch(self, metrics: Any) -> None:
        """Collect the means of the epoch."""
        self._logs |= select_metrics(metrics, "train/")

    def before_val(self, run: Run) -> None:
        """Call `on_test_begin`."""
        if not run.sanity_checking:
            self.callback.on_test_begin(None)

    def after_val(self, run: Run, metrics: Any) -> None:
        """Call `on_test_end`, and collect the results of the validation."""
        if not run.sanity_checking:
            results = select_metrics(metrics, "val/")
            self.callback.on_test_end(results)
            self._logs |= {f"val_{name}": value for name, value in results.items()}

    def after_epoch(self, epoch: int) -> None:
        """Call `on_epoch_end` with the means and results of the epoch."""
        self.callback.on_epoch_end(epoch, self._logs)

    def after_train(self) -> None:
        """Call `on_train_end`."""
        self.callback.on_train_end(self._logs)


def check_callback(callback: Any) -> None:
    """Check that an object is a callback of Keras that can work.

    Raises:
        ConfigError: If it is not.
    """
    if not isinstance(callback, keras.callbacks.Callback):
        raise ConfigError([f"callback: expected a keras.callbacks.Callback, got {type(callback).__name__}. Pass one."])
    for cls in type(callback).__mro__:
        if cls.__module__.startswith("keras.") and cls.__name__ in REFUSED:
            raise ConfigError([f"callback: {cls.__name__} {REFUSED[cls.__name__]}."])


def select_metrics(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the metrics with a prefix under their names in Keras: `val/small/loss` becomes `small_loss`."""
    names = {name: name.removeprefix(prefix).replace("/", "_") for name in metrics if name.startswith(prefix)}
    return {names[name]: float(metrics[name]) for name in names}


def is_overridden(callback: Any, method: str) -> bool:
    """Return whether a callback has its own method, of its class or assigned to the instance."""
    return getattr(getattr(callback, method), "__func__", None) is not getattr(keras.callbacks.Callback, method)
