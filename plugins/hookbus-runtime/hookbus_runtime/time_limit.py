"""Time limit of a training."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hookbus import Hook, Needs, Run, hookimpl, parse_duration
from hookbus_runtime.config import TimeLimitConfig


class TimeLimitHook(Hook):
    """Request to stop the run at the end of the first iteration that exceeds the time limit.

    The time is the training time including validations. By default it includes the time before a resume, which
    checkpoints contain; with `per_run` it starts with the current run.

    Attributes:
        timer: Callable that returns seconds, of which only differences are used. Used with `per_run`.
    """

    Config = TimeLimitConfig
    needs = Needs(requests=("stop",))
    config: TimeLimitConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        # Not time.time: a clock adjustment would change the measured duration.
        self.timer: Callable[[], float] = time.monotonic
        self._limit = parse_duration(self.config.max_time)
        self._start_time = 0.0

    def before_run(self) -> None:
        """Record the start time of the run."""
        self._start_time = self.timer()

    def before_train(self, run: Run) -> None:
        """Request to stop if the time before a resume exceeds the limit."""
        self._check_limit(run)

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Request to stop if the limit is exceeded."""
        self._check_limit(run)

    def _check_limit(self, run: Run) -> None:
        elapsed = self.timer() - self._start_time if self.config.per_run else run.seconds
        if elapsed >= self._limit and not run.stops:
            run.request_stop(f"the time limit of {self.config.max_time} is reached")
