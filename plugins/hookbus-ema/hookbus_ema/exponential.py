"""Exponential moving average of weights, updated in the step or on another thread. Depends on PyTorch only."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_ema.average import WeightAverage


class ExponentialMovingAverage(WeightAverage):
    """Exponential moving average (EMA) of the weights of a model.

    After optimizer step i (from 1) the average a of each floating-point weight w is updated in place:

        a <- m * a + (1 - m) * w,    m = min(momentum, (1 + i) / (warm_up + i))

    The average starts at the current weights. With `warm_up=0` it is bitwise identical to
    `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(momentum)`. The warm-up is that of TensorFlow's
    `ExponentialMovingAverage(num_updates=...)`, which corresponds to `warm_up=10`.

    Args:
        weights, update_buffers, device: As for `WeightAverage`.
        momentum: Weight of the old average in an update, in [0, 1].
        warm_up: Length of the momentum warm-up; 0 for `momentum` from the first step on.

    Attributes:
        momentum, warm_up: Arguments of the same name.
        unaveraged, steps: As for `WeightAverage`; `steps` is the number of the optimizer step of the last update.

    Raises:
        ValueError: If `momentum` is not in [0, 1] or `warm_up` is negative.
    """

    def __init__(
        self,
        weights: nn.Module | Mapping[str, Tensor],
        momentum: float = 0.9999,
        *,
        warm_up: int = 100,
        update_buffers: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 <= momentum <= 1 or warm_up < 0:
            raise ValueError(f"momentum must be in [0, 1] and warm_up at least 0, got {momentum!r} and {warm_up!r}.")
        self.momentum, self.warm_up = momentum, warm_up
        super().__init__(weights, update_buffers=update_buffers, device=device)

    def get_momentum(self, step: int) -> float:
        """Return the weight of the old average in the update after an optimizer step, from 1."""
        return min(self.momentum, (1 + step) / (self.warm_up + step))

    def get_alpha(self, step: int) -> float:
        """Return the weight of the new weights in the update after an optimizer step, from 1."""
        return 1 - self.get_momentum(step)


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


def _get_current_stream() -> AbstractContextManager[Any]:
    """Return a context manager that selects the device stream of this thread on another thread."""
    device = torch.get_device_module()
    # torch with CUDA, on a machine without a GPU, has the module but no stream. MPS has a single stream.
    if not torch.accelerator.is_available() or not hasattr(device, "stream"):
        return nullcontext()
    stream: AbstractContextManager[Any] = device.stream(device.current_stream())
    return stream
