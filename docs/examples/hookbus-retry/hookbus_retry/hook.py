"""A wrapper around the step of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from pydantic import Field

from hookbus import Hook, HookConfig, Run, hookimpl

__all__ = ["RetryConfig", "RetryHook"]


class RetryConfig(HookConfig):
    """How often, and how patiently."""

    attempts: int = Field(default=3, ge=1, description="How often a step is tried in all.")
    wait: float = Field(default=1.0, ge=0, description="Seconds before the second attempt; then twice as long.")


class RetryHook(Hook):
    """Tries a training step again that failed with an OSError.

    Attributes:
        sleep: waits so many seconds.
    """

    Config = RetryConfig
    config: RetryConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.sleep: Callable[[float], None] = time.sleep
        self._failed = 0

    @hookimpl(wrapper=True, tryfirst=True)  # outside of everything, so that everything is done again
    def train_step(self, run: Run, batch: Any) -> Generator[None, Any, Any]:
        """Do the step; if it fails in a way that may pass, wait and do the whole of it again."""
        touched = run.mid_accumulation  # gradients that a second attempt would add to twice
        try:
            outputs = yield
        except OSError as error:
            self._failed += 1
            if touched or run.stepped or self._failed >= self.config.attempts:
                self._failed = 0
                raise
            seconds = self.config.wait * 2 ** (self._failed - 1)
            run.logger.warning("%s: trying again in %g s: %s", self.name, seconds, error)
            self.sleep(seconds)
            outputs = run.bus.calls.train_step(run, batch)
        self._failed = 0
        return outputs
