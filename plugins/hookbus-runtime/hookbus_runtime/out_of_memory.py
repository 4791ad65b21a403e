"""A batch that does not fit into memory: a report that helps, and a retry in smaller parts."""

from __future__ import annotations

from typing import Any

import torch

from hookbus import Hook, Run, hookimpl
from hookbus.errors import ConfigError
from hookbus_runtime.config import OutOfMemoryConfig
from hookbus_runtime.empty_cache import empty_cache
from hookbus_runtime.parts import joined, shapes_of, size_of, split

__all__ = ["OutOfMemoryHook"]

GIB = 2**30


class OutOfMemoryHook(Hook):
    """Reports where the memory went, and with `retry` trains on the batch in parts whose gradients add up to the whole.

    Parts are halved until they fit; later batches are cut in the same way from the start, after a resume as well.

    Attributes:
        parts: into how many parts batches are cut.
    """

    Config = OutOfMemoryConfig
    makes_requests = False
    config: OutOfMemoryConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.parts = 1
        self._has_gradients = self._updates = False

    def before_run(self, run: Run) -> None:
        """A training that begins at zero begins with whole batches.

        Raises:
            ConfigError: a retry was asked for in a loop of one's own, whose step cannot be cut, or in one of several
                processes.
        """
        if run.mode == "train" and run.iters_done == 0:
            self.parts = 1
        if self.config.retry and run.trainer is None:
            raise ConfigError(
                [f"hook {self.name!r}: retry cuts the Trainer's own step. In a loop of your own say retry: false."]
            )
        if self.config.retry and run.ranks.world_size > 1:
            raise ConfigError(
                [
                    f"hook {self.name!r}: a process that makes its step again would let the others wait for ever. With "
                    "several processes say retry: false, and take smaller batches with accumulation."
                ]
            )

    @hookimpl(trylast=True)
    def train_step(self, run: Run, batch: Any) -> Any:
        """Train on the batch, in parts where that is needed; None leaves the step to the loop."""
        if not self.config.retry:
            return None
        while True:
            self._has_gradients = self._updates = False
            in_group = run.accumulated > 0
            try:
                return self._step(run, batch)
            except torch.OutOfMemoryError as error:
                reason = self._why_not_again(in_group, batch)
                if reason:
                    error.add_note(f"{self.report(run, batch)} {reason}")
                    raise
            self.parts = min(2 * self.parts, size_of(batch))
            empty_cache()
            run.logger.warning("%s Trying again in %s parts.", self.report(run, batch), self.parts)

    def after_backward(self) -> None:
        """Gradients of this step are there."""
        self._has_gradients = True

    def before_optimizer_step(self) -> None:
        """Weights are about to change, so the step cannot be made again."""
        self._updates = True

    def on_exception(self, run: Run, exception: BaseException) -> None:
        """Report, where a run has failed for want of memory."""
        if isinstance(exception, torch.OutOfMemoryError):
            run.logger.error("%s", self.report(run))

    def report(self, run: Run, batch: Any = None) -> str:
        """Where the memory went, and what can be done."""
        text = f"The device is out of memory at iteration {run.clock.number('iter')}, epoch {run.clock.number('epoch')}"
        text += "" if batch is None else f", with a batch of {shapes_of(batch)}"
        advice = "Use smaller batches with accumulation, a lower precision, or retry: true of the out_of_memory hook."
        return f"{text}. {_memory()}{advice}"

    def state_dict(self) -> dict[str, Any]:
        """Into how many parts batches are cut."""
        return {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.parts = state["parts"]

    # -- inside ----------------------------------------------------------------------------------

    def _step(self, run: Run, batch: Any) -> Any:
        steps, count = run.trainer.steps, size_of(batch)
        number = min(self.parts, count)
        if number <= 1:
            return steps.train_step(run, batch)
        sizes = [count // number + (i < count % number) for i in range(number)]
        weights = [size / count if self.config.reduction == "mean" else 1.0 for size in sizes]
        return joined(steps.train_parts(run, split(batch, sizes), weights), weights, sizes)

    def _why_not_again(self, in_group: bool, batch: Any) -> str:
        """Why another try would not be right, or no help; "" where it is."""
        if self._updates:
            return "The update itself did not fit, so smaller batches do not help."
        if self.parts >= size_of(batch):
            return "The batch cannot be cut any smaller."
        if in_group and self._has_gradients:
            return "It came in the middle of an accumulation, whose gradients are spoilt."
        return ""


def _memory() -> str:
    """What the allocator of the accelerator says; "" where there is none."""
    if not torch.accelerator.is_available():
        return ""
    stats = torch.accelerator.memory.memory_stats()
    parts = {"allocated": "allocated_bytes.all.current", "at most": "allocated_bytes.all.peak"}
    parts["reserved"] = "reserved_bytes.all.current"
    return f"{', '.join(f'{name} {stats.get(key, 0) / GIB:.2f} GiB' for name, key in parts.items())}. "
