"""The preemption hook: when the machine will be taken away, save once and leave with exit code 75."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hookbus import Hook, Priority
from hookbus.run import Run
from hookbus_checkpoint.config import PreemptionConfig

__all__ = ["PreemptionHook"]


class PreemptionHook(Hook):
    """Turns SIGTERM and SIGUSR1 into one checkpoint and a clean end at the next boundary.

    The handler only sets a flag. A second signal is handled as if this hook were not there. Handlers that were
    installed before are called as well, and are put back at the end. Of several processes it is enough that one gets
    the signal: all save and leave together, and one that gets its own a little later is not ended by it.
    """

    Config = PreemptionConfig
    priority = Priority.VERY_HIGH
    config: PreemptionConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._received: str | None = None
        self._has_asked = False
        self._earlier: dict[signal.Signals, Any] = {}

    def before_run(self, run: Run) -> None:
        """Listen to the signals, where this is the main thread of a training."""
        self._received, self._has_asked = None, False
        if run.mode != "train" or threading.current_thread() is not threading.main_thread():
            return
        for name in self.config.signals:
            number = signal.Signals[name]
            self._earlier[number] = signal.signal(number, self._handle)

    def after_train_iter(self, run: Run) -> None:
        """Ask for a checkpoint and the end, once a signal was received."""
        if self._received is not None:
            self._leave(run)

    def after_epoch(self, run: Run) -> None:
        """The same after a validation, during which no iteration ends."""
        if self._received is not None:
            self._leave(run)

    def cleanup(self) -> None:
        """Put the earlier handlers back."""
        while self._earlier:
            number, handler = self._earlier.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _leave(self, run: Run) -> None:
        reason, self._received, self._has_asked = f"received {self._received}", None, True
        if run.get("saver") is not None:
            run.request_save(reason)
        run.request_stop(reason, outcome="preempted")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        which = signal.Signals(number)
        earlier: Callable[[int, FrameType | None], Any] | int | None = self._earlier.get(which)
        if self._received is not None or self._has_asked:
            signal.signal(which, signal.SIG_DFL if earlier is None else earlier)
            os.kill(os.getpid(), which)
            return
        self._received = which.name
        if callable(earlier):
            earlier(number, frame)
