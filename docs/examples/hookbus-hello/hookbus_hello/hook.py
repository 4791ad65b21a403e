"""Where the hook listens, and what it does there."""

from __future__ import annotations

from typing import Any

from torch import nn

from hookbus import Hook, Metrics, Run, every, hookimpl
from hookbus_hello.config import HelloConfig

__all__ = ["HelloHook"]


class HelloHook(Hook):
    """Says hello when training begins, and the mean loss of the last `interval` iterations.

    Attributes:
        said: how often it told the loss, those before a resume included.
    """

    Config = HelloConfig
    config: HelloConfig
    observer = True  # it only watches: if it fails, it warns, and the training goes on
    ranks = "main"  # one process is enough

    said = 0

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Say hello, and begin to collect the loss."""
        run.metrics.window(self.name)
        weights = sum(parameter.numel() for parameter in model.parameters())
        text, kind = self.config.text, type(model).__name__
        run.logger.info("%s, %s with %d weights!", text, kind, weights)

    @hookimpl(when=every("interval"))
    def after_train_iter(self, run: Run) -> None:
        """Ask for the means; they come when all hooks are done with this iteration."""
        run.request_record(run.metrics.window(self.name), self.tell)

    def tell(self, metrics: Metrics, step: int) -> None:
        """Tell the mean loss."""
        self.said += 1
        text, loss = self.config.text, metrics["loss"]
        self.run.logger.info("%s again: the loss is %.4f after %d updates", text, loss, step)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"said": self.said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back when a run is resumed."""
        self.said = state["said"]
