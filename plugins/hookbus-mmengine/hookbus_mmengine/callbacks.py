"""Hook of MMEngine that calls the bridge at the points of a Runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmengine.hooks import Hook

if TYPE_CHECKING:
    from hookbus_mmengine.bridge import MMEngineBridge

PRIORITY = 80
"""After `ParamSchedulerHook` (70), whose step belongs to the iteration, and before `CheckpointHook` (90)."""


class BridgeHook(Hook):  # type: ignore[misc]
    """Hook of MMEngine that calls a bridge.

    Args:
        bridge: The bridge.
    """

    priority = PRIORITY

    def __init__(self, bridge: MMEngineBridge) -> None:
        self.bridge = bridge

    def before_run(self, runner: Any) -> None:
        """Connect the loops of the Runner, which exist from now on."""
        self.bridge.connect(runner)

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the state that the run restores when it begins."""
        self.bridge.keep_state(checkpoint)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Add the state of the run to a checkpoint."""
        self.bridge.add_state(checkpoint)

    # -- training ----------------------------------------------------------------------------

    def before_train(self, runner: Any) -> None:
        """Begin the run."""
        self.bridge.begin_training()

    def before_train_epoch(self, runner: Any) -> None:
        """Begin an epoch."""
        self.bridge.begin_epoch()

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Begin an iteration."""
        self.bridge.begin_iteration(data_batch)

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """End an iteration."""
        self.bridge.end_iteration(outputs)

    def after_train_epoch(self, runner: Any) -> None:
        """End the training part of an epoch."""
        self.bridge.bus.emit("after_train_epoch")

    # -- evaluation --------------------------------------------------------------------------

    def before_val_epoch(self, runner: Any) -> None:
        """Begin a validation."""
        self.bridge.begin_evaluation("val")

    def before_val_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Begin a batch of a validation."""
        self.bridge.bus.emit("before_val_iter", batch_idx=batch_idx, batch=data_batch)

    def after_val_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """End a batch of a validation."""
        self.bridge.bus.emit("after_val_iter", batch_idx=batch_idx, batch=data_batch, outputs=outputs)

    def after_val_epoch(self, runner: Any, metrics: dict[str, Any] | None = None) -> None:
        """End a validation. `CheckpointHook`, which follows, saves the best weights: the averages are removed now."""
        self.bridge.end_evaluation("val", metrics or {})

    def before_test_epoch(self, runner: Any) -> None:
        """Begin a test."""
        self.bridge.begin_evaluation("test")

    def before_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Begin a batch of a test."""
        self.bridge.bus.emit("before_test_iter", batch_idx=batch_idx, batch=data_batch)

    def after_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """End a batch of a test."""
        self.bridge.bus.emit("after_test_iter", batch_idx=batch_idx, batch=data_batch, outputs=outputs)

    def after_test_epoch(self, runner: Any, metrics: dict[str, Any] | None = None) -> None:
        """End a test."""
        self.bridge.end_evaluation("test", metrics or {})
