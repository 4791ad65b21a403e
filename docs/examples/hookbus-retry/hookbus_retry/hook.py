"""A wrapper of the training step."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from pydantic import Field

from hookbus import Hook, HookConfig, Needs, Run, hookimpl

__all__ = ["RetryConfig", "RetryHook"]


class RetryConfig(HookConfig):
    """Settings of `RetryHook`."""

    attempts: int = Field(default=3, ge=1, description="Maximum number of attempts per step.")
    wait: float = Field(
        default=1.0, ge=0, description="Seconds before the second attempt; doubled for each further attempt."
    )


class RetryHook(Hook):
    """Retry a training step that failed with an `OSError`.

    Attributes:
        sleep: Function that waits for a number of seconds.
    """

    Config = RetryConfig
    config: RetryConfig
    needs = Needs(actions=("train_step",))

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.sleep: Callable[[float], None] = time.sleep
        self._failed = 0

    @hookimpl(wrapper=True, tryfirst=True)  # outermost, so that all other wrappers are repeated
    def train_step(self, run: Run, batch: Any) -> Generator[None, Any, Any]:
        """Run the step, and repeat it after a transient error."""
        accumulated = run.accumulating  # a second attempt would add to these gradients twice
        try:
            outputs = yield
        except OSError as error:
            self._failed += 1
            if accumulated or run.stepped or self._failed >= self.config.attempts:
                self._failed = 0
                raise
            seconds = self.config.wait * 2 ** (self._failed - 1)
            run.logger.warning("%s: retrying in %g s: %s", self.name, seconds, error)
            self.sleep(seconds)
            outputs = run.bus.calls.train_step(run, batch)
        self._failed = 0
        return outputs
