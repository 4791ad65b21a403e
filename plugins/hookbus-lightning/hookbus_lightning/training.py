"""Events of the epochs and iterations of a training in Lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hookbus_lightning.results import to_outputs

if TYPE_CHECKING:
    from hookbus import Run
    from hookbus_lightning.bridge import LightningBridge


class TrainingEvents:
    """Events of one training.

    Args:
        bridge: Bridge, whose run is in progress.

    Attributes:
        epoch: Part of the epoch in progress: "train", "end" after the training part, "" between two epochs.
    """

    def __init__(self, bridge: LightningBridge) -> None:
        self._bridge, self._bus, self._trainer = bridge, bridge.bus, bridge.host
        self._run: Run = bridge.active_run
        self.epoch: Literal["", "train", "end"] = ""
        self._batch: Any = None
        self._outputs: dict[str, Any] | None = None
        self._loss: Tensor | None = None
        self._has_begun = self._has_replaced_batch = False

    def begin(self) -> None:
        """Emit `before_train`, once."""
        if not self._has_begun:
            self._has_begun = True
            self._bus.emit("before_train")

    # -- epochs ------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Begin an epoch, unless it has begun. An epoch that a checkpoint continues begins with its first batch."""
        if self.epoch:
            return
        # The checkpoint of the last batch of an epoch: Lightning does not repeat the end of that epoch.
        if self._run.epoch_open and self._trainer.current_epoch > self._run.epochs_done:
            self._emit_begin()
            self._bus.emit("after_epoch")
        self.epoch = "train"
        self._emit_begin()

    def _emit_begin(self) -> None:
        self._bus.emit("before_epoch")
        self._bus.emit("before_train_epoch")

    def end_train_epoch(self) -> None:
        """End the training part of an epoch, before the validation at its end."""
        if self.epoch == "train" and self._trainer.is_last_batch:
            self.epoch = "end"
            self._bus.emit("after_train_epoch")

    def end_epoch(self) -> None:
        """End an epoch. No effect if the checkpoint that the training continues was saved after the epoch."""
        if not self.epoch:
            return
        if self.epoch == "train" and not self._trainer.is_last_batch:
            # A limit of Lightning, such as `max_time`: the epoch is not complete.
            self._bridge.report_stop()
        self.epoch = ""
        self._bus.emit("after_epoch")

    # -- iterations --------------------------------------------------------------------------

    def begin_iteration(self, batch: Any, batch_idx: int) -> None:
        """Begin an iteration."""
        self._bus.emit("before_train_iter", batch_idx=batch_idx, batch=batch)
        self._batch = self._run.resolve_batch(batch)
        self._has_replaced_batch = self._batch is not batch

    def wrap_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method `training_step` of the strategy that emits `after_forward`."""

        def training_step(*args: Any, **kwargs: Any) -> Any:
            if self._has_replaced_batch:
                args = (self._batch, *args[1:])
            return self._report_forward(original(*args, **kwargs))

        return training_step

    def report_manual_loss(self, loss: Tensor) -> None:
        """Emit `after_forward` for a loss that the module passes to `manual_backward`."""
        scaler = getattr(self._trainer.precision_plugin, "scaler", None)
        if scaler is not None:  # without a device synchronization, unlike `get_scale`
            loss = loss / scaler.scale(torch.ones_like(loss))
        self._loss = loss.detach()
        self._bus.emit("after_forward", batch=self._batch, loss=loss)

    def report_backward(self) -> None:
        """Emit `after_backward`."""
        self._bus.emit("after_backward", batch=self._batch, outputs=self._outputs, loss=self._loss)

    def end_iteration(self, batch_idx: int) -> None:
        """End an iteration."""
        batch, outputs, loss = self._batch, self._outputs, self._loss
        self._batch = self._outputs = self._loss = None  # before the next batch is loaded
        if outputs is not None:
            outputs = {name: _detach(value) for name, value in outputs.items()}
        self._bus.emit("after_train_iter", batch_idx=batch_idx, batch=batch, outputs=outputs, loss=_detach(loss))

    def _report_forward(self, returned: Any) -> Any:
        """Emit `after_forward` in automatic optimization.

        Args:
            returned: What `training_step` has returned: its loss is not yet divided for the accumulation.

        Returns:
            The same, with the loss by which a hook has replaced it.
        """
        self._outputs = outputs = to_outputs(returned)
        if outputs is None or not self._trainer.lightning_module.automatic_optimization:
            return returned
        self._loss = loss = outputs.get("loss")
        self._bus.emit("after_forward", batch=self._batch, outputs=outputs, loss=loss)
        resolved = self._run.resolve_loss(loss)
        if resolved is loss:
            return returned
        self._loss = outputs["loss"] = resolved
        return outputs


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
