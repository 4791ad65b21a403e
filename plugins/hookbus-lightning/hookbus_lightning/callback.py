"""Callback that emits the events of a training in Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus_lightning.bridge import LightningBridge

STATE_KEY = "hookbus"
"""Key of the state of the hooks among the callbacks of a checkpoint."""


def get_package(trainer: Any) -> str:
    """Return the package of a trainer, also of a subclass: `lightning.pytorch` or `pytorch_lightning`."""
    modules = [cls.__module__ for cls in type(trainer).__mro__ if cls.__name__ == "Trainer"]
    return modules[-1].removesuffix(".trainer.trainer")


def make_callback(bridge: LightningBridge) -> Any:
    """Return the callback of a bridge, derived from the class `Callback` of the trainer's package."""
    base = import_module(f"{get_package(bridge.host)}.callbacks").Callback
    return type("HookbusCallback", (BusCallback, base), {})(bridge)


class BusCallback:
    """Methods that Lightning calls.

    Args:
        bridge: Bridge of the trainer.
    """

    state_key = STATE_KEY

    def __init__(self, bridge: LightningBridge) -> None:
        self._bridge = bridge

    def __reduce__(self) -> Any:
        raise ConfigError(
            "Trainer(strategy=): the strategy copies the trainer to other processes, which a bus cannot be. Use "
            "'ddp' or 'ddp_fork'."
        )

    # -- begin and end -----------------------------------------------------------------------

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Prepare the call."""
        self._bridge.prepare(module, stage)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Begin the run."""
        self._bridge.begin_fit()

    def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
        """Emit `before_train` before the sanity check."""
        self._bridge.begin_training()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Emit `before_train`, with the data loaded and all states restored."""
        self._bridge.set_train_data()
        self._bridge.begin_training()
        self._bridge.undo_first_iterator()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Emit `after_train`, while the model is still on its device."""
        self._bridge.report_own_stop()
        self._bridge.bus.emit("after_train")

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """End the run, after the last checkpoints of other callbacks."""
        self._bridge.finish()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """End the run that an exception has ended."""
        self._bridge.close(exception)

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """End a run that Lightning has left without an exception, such as its tuner."""
        self._bridge.close()

    # -- training ----------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """Begin an epoch."""
        self._bridge.training.begin_epoch()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin an iteration."""
        self._bridge.training.begin_epoch()  # an epoch that a checkpoint continues
        self._bridge.training.begin_iteration(batch, batch_idx)

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        """Emit `after_forward` in manual optimization; see `wrap_training_step` for the automatic one."""
        if not module.automatic_optimization:
            self._bridge.training.report_manual_loss(loss)

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        """Emit `after_backward`."""
        self._bridge.training.report_backward()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End an iteration."""
        self._bridge.training.end_iteration(batch_idx)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """End an epoch."""
        self._bridge.training.end_epoch()

    # -- validation and test -----------------------------------------------------------------

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begin a validation."""
        self._bridge.begin_evaluation("val", trainer.val_dataloaders)

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """Begin a test."""
        self._bridge.begin_evaluation("test", trainer.test_dataloaders)

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch."""
        self._bridge.evaluation.begin_batch(batch, batch_idx, dataloader_idx)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """End a batch."""
        self._bridge.evaluation.end_batch(outputs, batch, batch_idx)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """End a validation or test."""
        self._bridge.end_evaluation()

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_end = on_validation_end

    # -- state in a checkpoint ---------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of hooks and loop."""
        return self._bridge.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of hooks and loop."""
        self._bridge.set_state(state)
