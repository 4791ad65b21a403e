"""Moving average that is updated on another thread, concurrently with training."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from hookbus_ema.average import ExponentialMovingAverage
from hookbus_ema.config import EMAConfig


class AsyncMovingAverage(ExponentialMovingAverage):
    """Moving average that is updated on another thread during the next forward and backward.

    Parameters change in optimizer steps only, so the result is bitwise identical to `ExponentialMovingAverage` if
    `wait` is called before each change of the parameters. Methods that read or exchange averages call `wait`. Buffers
    change in the forward and are therefore updated before `update` returns. An exception of the other thread is raised
    by the next `wait`. The arguments are those of `ExponentialMovingAverage`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._executor: ThreadPoolExecutor | None = None
        self._future: Future[None] | None = None

    def wait(self) -> None:
        """Block until no update is in progress, and raise the exception of a failed one."""
        # Reset first, so that an exception is raised once and not by every later call.
        future, self._future = self._future, None
        if future is not None:
            future.result()

    def close(self) -> None:
        """Shut down the other thread; the next update starts a new one."""
        executor, self._executor = self._executor, None
        try:
            self.wait()
        finally:
            if executor is not None:
                executor.shutdown()

    def _update_average(self, alpha: float) -> None:
        # Created on the first update, so that an average without updates starts no thread.
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moving-average")
        self._future = self._executor.submit(self._update_on_stream, _get_current_stream(), alpha)

    def _update_on_stream(self, stream: AbstractContextManager[Any], alpha: float) -> None:
        # The current stream is per thread. On the stream of the training, the update runs after the optimizer step.
        with stream:
            super()._update_average(alpha)


def build_average(model: nn.Module, config: EMAConfig) -> ExponentialMovingAverage:
    """Create the average of a model according to a configuration."""
    average_class = AsyncMovingAverage if config.overlap else ExponentialMovingAverage
    return average_class(model, **config.model_dump(include={"momentum", "warm_up", "update_buffers", "device"}))


def _get_current_stream() -> AbstractContextManager[Any]:
    """Return a context manager that selects the device stream of this thread on another thread."""
    return torch.accelerator.current_stream() if torch.accelerator.is_available() else nullcontext()
