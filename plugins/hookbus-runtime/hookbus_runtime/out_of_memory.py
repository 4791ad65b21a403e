"""Handling of out-of-memory errors: report, and retry in smaller parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookbus import Hook, Needs, Run, hookimpl
from hookbus.checkpoint import schema
from hookbus.errors import ConfigError
from hookbus_runtime.config import OutOfMemoryConfig
from hookbus_runtime.memory import empty_cache

BYTES_PER_GIB = 2**30


class OutOfMemoryHook(Hook):
    """Report out-of-memory errors, and with `retry` repeat the training step with the batch split into parts.

    The gradients of the parts are accumulated to those of the whole batch. The number of parts is doubled until they
    fit; later batches are split in the same way, also after a resume.

    Attributes:
        parts: Number of parts per batch.
    """

    Config = OutOfMemoryConfig
    makes_requests = False
    config: OutOfMemoryConfig
    state_schema = schema.record({"parts": schema.integer(1)})

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.parts = 1
        self._has_gradients = self._optimizer_step_started = False

    @property
    def needs(self) -> Needs:
        """The exception to report; with `retry` the step to repeat."""
        return Needs(points=("on_exception",), actions=("train_step",) if self.config.retry else ())

    def check(self, run: Run) -> None:
        """Check that the Trainer of a single process executes the steps, and that only one hook repeats them.

        Raises:
            ConfigError: If `retry` is set in a custom loop, in distributed training, or for another hook as well.
        """
        if self.config.retry:
            _check_retry(run)
        remedy = "Set `retry: false` for one of them."
        self.check_unique(run, "repeats steps", remedy, setting="retry", get_value=lambda hook: hook.config.retry)

    def before_run(self, run: Run) -> None:
        """Reset the number of parts if the training starts from scratch."""
        if run.mode == "train" and run.iters_done == 0:
            self.parts = 1

    @hookimpl(trylast=True)
    def train_step(self, run: Run, batch: Any) -> Any:
        """Train on the batch, in parts if necessary; without `retry`, return None to use the step of the loop."""
        # A search for the batch size needs the error.
        if not self.config.retry or (run.trial is not None and run.trial.local):
            return None
        while True:
            self._has_gradients = self._optimizer_step_started = False
            in_group = run.accumulated > 0
            try:
                return self._train_step(run, batch)
            except torch.OutOfMemoryError as error:
                reason = self._retry_blocker(in_group, batch)
                if reason:
                    error.add_note(f"{self.format_report(run, batch)} {reason}")
                    raise
            # Outside the except clause: the traceback of the error references the tensors of the failed step.
            self.parts = min(2 * self.parts, get_batch_size(batch))
            empty_cache()
            run.logger.warning("%s The step is repeated in %s parts.", self.format_report(run, batch), self.parts)

    @hookimpl(frequency=False)
    def after_backward(self) -> None:
        """Record that the step has computed gradients."""
        self._has_gradients = True

    @hookimpl(frequency=False)
    def before_optimizer_step(self) -> None:
        """Record that the optimizer step has started, after which the training step cannot be repeated."""
        self._optimizer_step_started = True

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """Log the report if the run failed with an out-of-memory error."""
        if isinstance(exception, torch.OutOfMemoryError):
            run.logger.error("%s", self.format_report(run))

    def format_report(self, run: Run, batch: Any = None) -> str:
        """Return a message with the memory statistics of the device and possible fixes."""
        text = f"The device is out of memory at iteration {run.current('iter')}, epoch {run.current('epoch')}"
        text += "" if batch is None else f", with a batch of {format_shapes(batch)}"
        advice = "Use smaller batches with accumulation or a lower precision, or set `retry: true` of out_of_memory."
        return f"{text}. {_format_memory()}{advice}"

    def state_dict(self) -> dict[str, Any]:
        """Return the number of parts per batch."""
        return {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.parts = state["parts"]

    # -- inside ----------------------------------------------------------------------------------

    def _train_step(self, run: Run, batch: Any) -> Any:
        count = get_batch_size(batch)
        number = min(self.parts, count)
        if number <= 1:
            return run.train_step(batch)
        sizes = [count // number + (i < count % number) for i in range(number)]
        weights = [size / count if self.config.reduction == "mean" else 1.0 for size in sizes]
        return merge_outputs(run.train_micro_batches(split_batch(batch, sizes), weights), weights, sizes)

    def _retry_blocker(self, in_group: bool, batch: Any) -> str:
        """Return why the step cannot be repeated; "" if it can."""
        if self._optimizer_step_started:
            return "The optimizer step itself exceeded the memory, so smaller batches do not help."
        if self.parts >= get_batch_size(batch):
            return "The batch cannot be split further."
        # The failed step has added to gradients of earlier micro-batches; otherwise the repeated step clears them.
        if in_group and self._has_gradients:
            return "The error occurred during an accumulation, whose gradients are corrupted."
        return ""


def _format_memory() -> str:
    """Return the allocator statistics of the accelerator as text; "" without statistics."""
    device = torch.get_device_module()
    if not torch.accelerator.is_available() or not hasattr(device, "memory_stats"):  # such as on MPS
        return ""
    stats = device.memory_stats()
    parts = {"allocated": "allocated_bytes.all.current", "peak": "allocated_bytes.all.peak"}
    parts["reserved"] = "reserved_bytes.all.current"
    return f"{', '.join(f'{name} {stats.get(key, 0) / BYTES_PER_GIB:.2f} GiB' for name, key in parts.items())}. "


def _check_retry(run: Run) -> None:
    """Raise if steps cannot be repeated in a run."""
    if run.trainer is None:
        raise ConfigError(["`retry` splits the step of the Trainer, got a custom loop. Set `retry: false`."])
    # The backward pass of DDP and FSDP is a collective operation: a repeated step on one rank would deadlock.
    if run.ranks.world_size > 1:
        raise ConfigError(
            [
                f"`retry` requires a single process, got {run.ranks.world_size} ranks: a rank that repeats its step "
                "would block the others. Set `retry: false`, and use smaller batches with accumulation."
            ]
        )


def get_batch_size(batch: Any) -> int:
    """Return the number of samples: the length of the first tensor that is not a scalar, 0 if there is none."""
    return next((len(tensor) for tensor in _find_tensors(batch) if tensor.dim()), 0)


def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a batch into parts.

    Tensors and lists with one element per sample are split; all other values are repeated in each part.

    Args:
        batch: A tensor of shape (N, ...), or nested tuples, lists and mappings of such tensors.
        sizes: Number of samples of each part, with the sum N.
    """
    count = sum(sizes)
    if isinstance(batch, Tensor):
        return list(batch.split(list(sizes))) if batch.dim() and len(batch) == count else [batch] * len(sizes)
    if isinstance(batch, Mapping):
        columns = {key: split_batch(value, sizes) for key, value in batch.items()}
        return [{key: values[i] for key, values in columns.items()} for i in range(len(sizes))]
    # A list of N items is per sample, unless an item is itself a batch of N: then the list is a tuple of N fields.
    if isinstance(batch, list) and len(batch) == count and not any(get_batch_size(item) == count for item in batch):
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [batch[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if isinstance(batch, (tuple, list)):
        rows = list(zip(*(split_batch(item, sizes) for item in batch), strict=True))
        # The constructor of a named tuple has a parameter per field.
        return [type(batch)(*row) if hasattr(batch, "_fields") else type(batch)(row) for row in rows]
    return [batch] * len(sizes)


def merge_outputs(
    outputs: Sequence[Mapping[str, Any]], weights: Sequence[float], sizes: Sequence[int]
) -> dict[str, Any]:
    """Merge the outputs of the parts into the outputs of the whole batch.

    Scalars are summed by weight, tensors with one element per sample are concatenated. Of all other values, the value
    of the last part is used.
    """
    return {name: _merge_values([output[name] for output in outputs], weights, sizes) for name in outputs[-1]}


def format_shapes(batch: Any) -> str:
    """Return the shapes and dtypes of the tensors of a batch as text."""
    return ", ".join(
        f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in _find_tensors(batch)
    )


def _merge_values(values: list[Any], weights: Sequence[float], sizes: Sequence[int]) -> Any:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return sum(v * w for v, w in zip(values, weights, strict=True)) if numeric else values[-1]
    if all(tensor.dim() and len(tensor) == size for tensor, size in zip(tensors, sizes, strict=True)):
        return torch.cat(tensors)
    # Integer scalars, such as counters, have no meaningful weighted sum.
    if all(not tensor.dim() and tensor.is_floating_point() for tensor in tensors):
        return sum(tensor * weight for tensor, weight in zip(tensors, weights, strict=True))
    return tensors[-1]


def _find_tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return [tensor for item in items for tensor in _find_tensors(item)]
