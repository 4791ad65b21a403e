"""Ends a training in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hookbus import Hook, Run
from hookbus_runtime.config import TimeLimitConfig
from hookbus_runtime.durations import seconds_of

__all__ = ["TimeLimitHook"]


class TimeLimitHook(Hook):
    """Asks for the end of the run at the first iteration that ends after the time is up.

    Time is that of training, validations included: the whole of it, with what came before a resume, which the clock of
    the run keeps; or with `per_run` that since this run began.

    Attributes:
        timer: returns seconds; only differences are used. For `per_run`.
    """

    Config = TimeLimitConfig
    config: TimeLimitConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.timer: Callable[[], float] = time.monotonic
        self._limit = seconds_of(self.config.max_time)
        self._began = 0.0

    def before_run(self) -> None:
        """The time of this run begins."""
        self._began = self.timer()

    def before_train(self, run: Run) -> None:
        """A training whose time is up does not go on."""
        self._ask(run)

    def after_train_iter(self, run: Run) -> None:
        """Look at the time."""
        self._ask(run)

    def _ask(self, run: Run) -> None:
        spent = self.timer() - self._began if self.config.per_run else run.clock.seconds
        if spent >= self._limit and not run.stops:
            run.request_stop(f"the time limit of {self.config.max_time} is reached")
