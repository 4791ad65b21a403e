"""Training iterations of the Trainer: the events between the batch and the end of the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_pt_utils import nested_detach

from hookbus_transformers.outputs import name_outputs

if TYPE_CHECKING:
    from hookbus_transformers.bridge import TransformersBridge


class _SkipError(Exception):
    """Exception that leaves a training step between forward and backward, and that no caller receives."""


class TrainingSteps:
    """Iterations of a Trainer, from methods that replace its own.

    Args:
        bridge: Bridge of the Trainer.

    Attributes:
        is_computing: Whether the forward and backward of a training iteration are in progress.
    """

    def __init__(self, bridge: TransformersBridge) -> None:
        self._bridge = bridge
        self._held = ExitStack()  # the steps that are held back
        self.reset()

    def reset(self) -> None:
        """Begin a new training."""
        self.is_computing = self._is_open = self._has_gradients = self._has_warned = False
        self._batch: Any = None
        self._outputs: dict[str, Any] | None = None
        self._held.close()

    def training_step(
        self, original: Callable[..., torch.Tensor], model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Replace `Trainer.training_step`: emit the events before and after the forward and backward."""
        bridge = self._bridge
        if not bridge.is_open:
            return original(model, inputs, *args, **kwargs)
        bridge.bus.emit("before_train_iter", batch=inputs)
        run = bridge.active_run
        self._batch, self._outputs, self._is_open = run.resolve_batch(inputs), None, True
        if not run.should_skip_iter:
            try:
                return self._compute(original, model, *args, **kwargs)
            except _SkipError:
                pass
        return torch.zeros((), device=bridge.host.args.device)

    def _compute(self, original: Callable[..., torch.Tensor], model: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute the gradients of a micro-batch, and return its part of the loss of the optimizer step."""
        self.is_computing = True
        try:
            loss = original(model, self._batch, *args, **kwargs)
        finally:
            self.is_computing = False
        self._has_gradients = True
        if self._outputs is None:
            self._outputs = {"loss": loss * self._bridge.host.current_gradient_accumulation_steps}
            self._warn_missing_forward()
        self._bridge.bus.emit("after_backward", batch=self._batch, outputs=self._outputs)
        return loss

    def receive_loss(self, loss: torch.Tensor, outputs: Any, num_items: Any) -> torch.Tensor:
        """Emit `after_forward`, and return the loss for the backward.

        Hooks receive the mean loss of the micro-batch. A loss that is divided by the number of items of all
        micro-batches of the step, as the Trainer assumes of models that accept keyword arguments, is multiplied by
        the number of micro-batches, so that its mean over them is the loss of the step.

        Args:
            loss: Loss that `compute_loss` has returned.
            outputs: Outputs of the model.
            num_items: Number of items of all micro-batches of the step, None if they are not counted.
        """
        trainer, run = self._bridge.host, self._bridge.active_run
        if loss.dim():  # the losses of the devices of `DataParallel`
            loss = loss.mean()
        factor = trainer.current_gradient_accumulation_steps if _is_divided(trainer, num_items) else 1
        reported = loss * factor if factor > 1 else loss
        self._outputs = name_outputs(reported, outputs)
        self._bridge.bus.emit("after_forward", batch=self._batch, outputs=self._outputs)
        if run.should_skip_iter:
            raise _SkipError
        replaced: torch.Tensor = run.resolve_loss(reported)
        if replaced is reported:
            return loss
        self._outputs["loss"] = replaced = replaced.reshape(())
        return replaced / factor if factor > 1 else replaced

    def end_iteration(self) -> None:
        """Emit `after_train_iter`, in which the gradients are available. No effect outside of an iteration."""
        if not self._is_open:
            return
        batch, outputs = self._batch, self._outputs
        # Released before the events, so that hooks may free the memory of the batch.
        self._batch, self._outputs, self._is_open = None, None, False
        detached = None if outputs is None else nested_detach(outputs)
        self._bridge.bus.emit("after_train_iter", batch=batch, outputs=detached)

    def begin_step(self) -> None:
        """Hold back the steps of optimizer and scheduler if no micro-batch of the group has gradients.

        The step of the scheduler is held back as well if a hook sets the learning rate, which the constant scheduler of
        the Trainer would reset.
        """
        trainer, is_open = self._bridge.host, self._bridge.is_open
        if is_open and not self._has_gradients:
            self._held.enter_context(_hold_back(trainer.optimizer))
            self._held.enter_context(_hold_back(trainer.lr_scheduler))
        elif is_open and self._bridge.active_run.has_lr_hook:
            # The learning rate that the Trainer logs.
            trainer.lr_scheduler._last_lr = [group["lr"] for group in trainer.optimizer.param_groups]
            self._held.enter_context(_hold_back(trainer.lr_scheduler))
        self._has_gradients = False

    def end_step(self) -> None:
        """Restore the steps that were held back."""
        self._held.close()

    def _warn_missing_forward(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._bridge.active_run.logger.warning(
                "%s.training_step does not call compute_loss: after_forward is not emitted, and hooks receive no "
                "outputs but the loss.",
                type(self._bridge.host).__name__,
            )


def _is_divided(trainer: Any, num_items: Any) -> bool:
    """Return whether `compute_loss` divides the loss by the number of items of all micro-batches of the step."""
    declared = getattr(trainer, "loss_is_scaled_for_ga", None)  # since Transformers 5
    if declared is not None:
        return bool(declared)
    return trainer.compute_loss_func is not None or (trainer.model_accepts_loss_kwargs and num_items is not None)


@contextmanager
def _hold_back(owner: Any) -> Iterator[None]:
    """Context manager in which `owner.step()` has no effect."""
    attributes = vars(owner)
    own = attributes.get("step")
    attributes["step"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        if own is None:
            del attributes["step"]
        else:
            attributes["step"] = own
