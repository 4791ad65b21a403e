"""The same average, taken while the training goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from hookbus.records.copies import current_stream
from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig

__all__ = ["OverlappedAverage", "average_of"]


class OverlappedAverage(ExponentialMovingAverage):
    """An average that is updated on another thread, during the next forward and backward.

    Parameters do not change between one optimizer step and the next, so the result is the same bit for bit, as long as
    whoever changes them calls `wait` first: before each optimizer step. Everything that reads or exchanges averages
    waits by itself. Buffers, which a forward changes, are brought up to date before `update` returns. What went wrong
    on the other thread is raised by the next `wait`. Arguments are those of `ExponentialMovingAverage`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def wait(self) -> None:
        """Return once no update is running."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """End the other thread; the next update begins a new one."""
        thread, self._thread = self._thread, None
        try:
            self.wait()
        finally:
            if thread is not None:
                thread.shutdown()

    def _move(self, share: float) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moving-average")
        self._running = self._thread.submit(self._move_after, current_stream(), share)

    def _move_after(self, stream: AbstractContextManager[Any], share: float) -> None:
        with stream:
            super()._move(share)


def average_of(model: nn.Module, config: EMAConfig) -> ExponentialMovingAverage:
    """The average that a configuration asks for."""
    kind = OverlappedAverage if config.overlap else ExponentialMovingAverage
    return kind(model, **config.model_dump(include={"momentum", "warm_up", "update_buffers", "device"}))
