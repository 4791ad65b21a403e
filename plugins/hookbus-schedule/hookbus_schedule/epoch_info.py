"""Tells the model which epoch it is."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookbus import Hook, Run
from hookbus.errors import HookError
from hookbus.model.wrappers import unwrapped

__all__ = ["SetEpochInfoHook"]


class SetEpochInfoHook(Hook):
    """Calls `model.set_epoch(epoch)` before each training epoch, with the index from 0; after a resume as well."""

    makes_requests = False

    def check(self, run: Run) -> None:
        """See that the model wants to know.

        Raises:
            HookError: it has no method for it.
        """
        model = None if run.model is None else unwrapped(run.model)
        if not callable(getattr(model, "set_epoch", None)):
            raise HookError(
                f"it tells the model the epoch, and {type(model).__name__} has no method set_epoch(epoch): write one, "
                "or leave the hook out."
            )

    def before_train_epoch(self, epoch: int, model: nn.Module) -> None:
        """Tell it."""
        told: Any = unwrapped(model)
        told.set_epoch(epoch)
