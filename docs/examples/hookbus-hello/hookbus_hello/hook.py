"""Listeners of the hook."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookbus import Hook, Metrics, Run, every, hookimpl
from hookbus_hello.config import HelloConfig

__all__ = ["HelloHook"]


class HelloHook(Hook):
    """Log a greeting when training begins, and the mean loss of every `interval` iterations.

    Attributes:
        count: Number of logged losses, including those before a resume.
    """

    Config = HelloConfig
    config: HelloConfig
    observer = True  # a failure is a warning and does not end the training
    ranks = "main"  # run on rank 0 only

    count = 0

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Log the greeting and start to collect the loss."""
        run.metrics.window(self.name)
        weights = sum(parameter.numel() for parameter in model.parameters())
        text, kind = self.config.text, type(model).__name__
        run.logger.info("%s, %s with %d weights!", text, kind, weights)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Request the mean loss; it is delivered after all hooks have run."""
        run.request_record(run.metrics.window(self.name), self.log_loss)

    def log_loss(self, metrics: Metrics, step: int) -> None:
        """Log the mean loss."""
        self.count += 1
        text, loss = self.config.text, metrics["loss"]
        self.run.logger.info("%s again: loss %.4f after %d steps", text, loss, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in checkpoints."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.count = state["count"]
