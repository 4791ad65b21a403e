"""Preemption hook: save one checkpoint after a preemption signal, and end the run with exit code 75."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from hookbus import Hook, Needs, Priority, Run, hookimpl
from hookbus_checkpoint.config import PreemptionConfig


class PreemptionHook(Hook):
    """Save one checkpoint and stop the run at the next boundary after SIGTERM or SIGUSR1.

    The handler only records the signal and calls the previous handler, which is restored at the end of the run. The
    previous handler alone handles a second signal. In distributed training a signal to one rank is sufficient: all
    ranks save and stop together, and a later signal to another rank does not kill it.
    """

    Config = PreemptionConfig
    priority = Priority.VERY_HIGH
    needs = Needs(requests=("stop",))
    config: PreemptionConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._received: str | None = None
        self._has_requested = False
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def before_run(self, run: Run) -> None:
        """Install the signal handlers of a training run."""
        self._received, self._has_requested = None, False
        # Python allows signal handlers in the main thread only.
        if run.mode != "train" or threading.current_thread() is not threading.main_thread():
            return
        for name in self.config.signals:
            number = signal.Signals[name]
            self._previous_handlers[number] = signal.signal(number, self._handle)

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Request a checkpoint and a stop after a signal."""
        self._request_stop(run)

    @hookimpl(frequency=False)
    def after_epoch(self, run: Run) -> None:
        """Request a checkpoint and a stop after a signal during a validation, in which no iteration ends."""
        self._request_stop(run)

    def cleanup(self) -> None:
        """Restore the previous signal handlers."""
        while self._previous_handlers:
            number, handler = self._previous_handlers.popitem()
            # None: the previous handler was not installed from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _request_stop(self, run: Run) -> None:
        if self._received is None:
            return
        reason, self._received, self._has_requested = f"received {self._received}", None, True
        if run.can_save:
            run.request_save(reason)
        run.request_stop(reason, outcome="preempted")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        previous: Callable[[int, FrameType | None], Any] | int | None = self._previous_handlers.get(received)
        if self._received is not None or self._has_requested:
            # The default action, such as termination, can only be triggered by sending the signal again.
            signal.signal(received, signal.SIG_DFL if previous is None else previous)
            signal.raise_signal(received)
            return
        self._received = received.name
        self.run.receive_signal(partial(self._request_stop, self.run))
        if callable(previous):
            previous(number, frame)
