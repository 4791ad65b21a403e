"""Exponential moving average of weights, updated in the step or on another thread. Depends on PyTorch only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from hookbus_ema import tensors


class ExponentialMovingAverage:
    """Exponential moving average (EMA) of the weights of a model.

    After optimizer step i (from 1) the average a of each floating-point weight w is updated in place:

        a <- m * a + (1 - m) * w,    m = min(momentum, (1 + i) / (warm_up + i))

    The average starts at the current weights. With `warm_up=0` it is bitwise identical to
    `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(momentum)`. The warm-up is that of TensorFlow's
    `ExponentialMovingAverage(num_updates=...)`, which corresponds to `warm_up=10`.

    * An update allocates no memory.
    * Shared tensors are averaged once.
    * Frozen tensors are averaged as well, which does not change them, so they may be unfrozen at any time.
    * Averages have at least 32 bits, because small updates would be rounded away in lower precision.
    * Tensors that cannot be averaged are copied: integer, fp8 and quantized tensors, for example.
    * Tensors that cannot be copied in place, such as expanded ones, are those of the model.
    * Each rank averages its local shards of sharded tensors (FSDP2), without communication.

    Args:
        weights: A module, or tensors by name. The tensors are referenced, not copied: they must be changed in place, as
            optimizers do.
        momentum: Weight of the old average in an update, in [0, 1].
        warm_up: Length of the momentum warm-up; 0 for `momentum` from the first step on.
        update_buffers: Whether the floating-point buffers of a module are averaged; otherwise an update copies them.
        device: Device of the averages; default the device of each weight.

    Attributes:
        momentum, warm_up: Arguments of the same name.
        unaveraged: Reasons for which parameters, and buffers with `update_buffers`, cannot be averaged, by name.
        steps: Number of the optimizer step of the last update; 0 before the first.

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
        self.momentum, self.warm_up, self.steps = momentum, warm_up, 0
        named = tensors.get_tensors(weights)
        # By identity: tied weights appear under several names but are updated once.
        self._weights = list({id(tensor): tensor for tensor in named.values()}.values())
        index = {id(tensor): i for i, tensor in enumerate(self._weights)}
        self._indices = {name: index[id(tensor)] for name, tensor in named.items()}
        self._averages = [tensors.init_average(weight, device) for weight in self._weights]
        self._raw: list[Tensor] | None = None
        buffers = {id(buffer) for buffer in weights.buffers()} if isinstance(weights, nn.Module) else set()
        self._partition(buffers, update_buffers)
        # Integer buffers, such as counters, are never meant to be averaged.
        excluded = {id(t) for t in self._weights if id(t) in buffers and not (update_buffers and tensors.is_inexact(t))}
        reasons = {name: tensors.describe_unaveraged(t) for name, t in named.items() if id(t) not in excluded}
        self.unaveraged = {name: reason for name, reason in reasons.items() if reason}

    def _partition(self, buffers: set[int], update_buffers: bool) -> None:
        """Partition the tensors into averaged parameters, averaged buffers, and copied tensors."""
        self._copied_pairs: list[tuple[Tensor, Tensor]] = []
        parameters: list[tuple[Tensor, Tensor]] = []
        averaged_buffers: list[tuple[Tensor, Tensor]] = []
        for average, weight in zip(self._averages, self._weights, strict=True):
            is_buffer = id(weight) in buffers
            if tensors.can_be_averaged(weight) and (update_buffers or not is_buffer):
                # Buffers are separate because an overlapped update must not read them during a forward.
                (averaged_buffers if is_buffer else parameters).append((average, weight))
            elif tensors.can_be_copied(weight):
                self._copied_pairs.append((average, weight))
        self._parameter_groups = tensors.build_groups(parameters)
        self._buffer_groups = tensors.build_groups(averaged_buffers)

    def averages_model(self, model: nn.Module) -> bool:
        """Whether the averaged tensors are the current tensors of a model, by name and identity."""
        named = tensors.get_tensors(model)
        return named.keys() == self._indices.keys() and all(
            self._weights[i] is named[name] for name, i in self._indices.items()
        )

    def transfer_from(self, other: ExponentialMovingAverage) -> list[str]:
        """Copy the steps of another average, and its averages of the tensors that both average.

        Args:
            other: The other average.

        Returns:
            Sorted names of the remaining averaged tensors, whose averages start at their current values.
        """
        known = dict(zip(map(id, other._weights), other._averages, strict=True))
        with torch.no_grad():
            for weight, average in zip(self._weights, self._averages, strict=True):
                if id(weight) in known and tensors.can_be_copied(weight):
                    average.copy_(known[id(weight)])
        self.steps = other.steps
        known |= {id(weight): average for average, weight in self._copied_pairs}
        return sorted(name for name, i in self._indices.items() if id(self._weights[i]) not in known)

    # -- updating --------------------------------------------------------------------------------

    def get_momentum(self, step: int) -> float:
        """Return the weight of the old average in the update after an optimizer step, from 1."""
        return min(self.momentum, (1 + step) / (self.warm_up + step))

    def update(self, step: int | None = None) -> None:
        """Update the average. Must be called once after each optimizer step.

        Args:
            step: Number of the step, from 1; default the number of the last update plus 1. Only the warm-up depends
                on it.

        Raises:
            RuntimeError: If the averages are in the model, inside `applied`.
        """
        if self._raw is not None:
            raise RuntimeError(
                "The averaged weights are in the model, so an update would average them with themselves. Train and "
                "update outside of `applied()`."
            )
        self.wait()
        self.steps = self.steps + 1 if step is None else step
        alpha = 1 - self.get_momentum(self.steps)
        with torch.no_grad():
            for average, buffer in self._copied_pairs:
                average.copy_(buffer)
            for group in self._buffer_groups:
                group.update(alpha)
        self._update_average(alpha)

    def wait(self) -> None:
        """Block until no update is in progress. A no-op here: `update` is synchronous."""

    def close(self) -> None:
        """Release threads; the average remains usable. A no-op here: no thread is used."""

    def _update_average(self, alpha: float) -> None:
        """Update the averages of the parameters, which do not change before the next optimizer step."""
        with torch.no_grad():
            for group in self._parameter_groups:
                group.update(alpha)

    # -- reading ---------------------------------------------------------------------------------

    def averaged(self) -> dict[str, Tensor]:
        """Return the averages under the names of the state dict. Tensors are references, not copies."""
        self.wait()
        return {name: self._averages[i] for name, i in self._indices.items()}

    def raw(self) -> dict[str, Tensor] | None:
        """Return the raw weights while the averages are in the model; None while the model contains the raw weights."""
        return None if self._raw is None else {name: self._raw[i] for name, i in self._indices.items()}

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context manager inside which the model contains the averages. Restores the raw weights on exit, bit-exact.

        Changes to the tensors of the model inside the context are lost. A nested context is a no-op.
        """
        if self._raw is not None:
            yield
            return
        self.wait()
        raw = [
            weight.detach().clone() if tensors.can_be_copied(weight) else weight.detach() for weight in self._weights
        ]
        self._raw = raw
        try:
            self._copy_to_model(self._averages)
            yield
        finally:
            self._copy_to_model(raw)
            self._raw = None

    def _copy_to_model(self, values: list[Tensor]) -> None:
        copyable = [tensors.can_be_copied(weight) for weight in self._weights]
        targets, sources = (list(map(tensors.to_local, compress(part, copyable))) for part in (self._weights, values))
        # `torch._foreach_copy_` raises on an empty list.
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume: `steps`, and `averaged` as references."""
        return {"steps": self.steps, "averaged": self.averaged()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`. The weights of the model are not modified.

        Sharded averages accept full tensors as well.

        Args:
            state: The state.

        Raises:
            ValueError: If names or shapes differ from those of the weights. The message lists all of them, and the
                averages are unchanged.
        """
        own, saved = self.averaged(), state["averaged"]
        mismatched = [name for name in own if name not in saved or saved[name].shape != own[name].shape]
        mismatched += [name for name in saved if name not in own]
        if mismatched:
            raise ValueError(
                "averages do not match the weights; missing, unexpected or of another shape: "
                f"{', '.join(mismatched)}. Load averages of a model with the same tensors."
            )
        with torch.no_grad():
            for name, average in own.items():
                if tensors.can_be_copied(average):
                    average.copy_(tensors.shard_like(average, saved[name]))
        self.steps = state["steps"]


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
