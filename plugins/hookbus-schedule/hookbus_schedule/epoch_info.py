"""Epoch index for models that depend on it."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.distributed import unwrap_model
from hookbus.errors import HookError


class SetEpochInfoHook(Hook):
    """Call `model.set_epoch(epoch)` before each training epoch, with the index from 0, also after a resume."""

    makes_requests = False
    needs = Needs(points=("before_train_epoch",))

    def check(self, run: Run) -> None:
        """Check that the model has a method `set_epoch`.

        Raises:
            HookError: If the model has no such method.
        """
        model = None if run.model is None else unwrap_model(run.model)
        if not callable(getattr(model, "set_epoch", None)):
            raise HookError(
                f"requires a model with a method set_epoch(epoch), got {type(model).__name__}. Add the method, or "
                "remove the hook."
            )

    @hookimpl(frequency=False)
    def before_train_epoch(self, epoch: int, model: nn.Module) -> None:
        """Set the epoch of the model."""
        target: Any = unwrap_model(model)
        target.set_epoch(epoch)
