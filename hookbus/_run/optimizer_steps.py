"""Optimizer steps, counted by the step hooks of the optimizer.

Accumulation and steps that a gradient scaler skips are therefore counted correctly in any loop, and the optimizer
points are emitted automatically. A loop may also emit `before_optimizer_step` and `after_optimizer_step` itself: each
optimizer step has exactly one of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookbus.distributed.unwrap import unwrap_optimizer
from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus._run.run import Run

__all__ = ["OptimizerEvents"]


class OptimizerEvents:
    """Step hooks that count the steps of a run's optimizer and emit the optimizer points.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._optimizer: Any = None
        self._pre_handle: Any = None
        self._post_handle: Any = None
        self._before_emitted = False
        self._after_emitted_step = run.clock.steps_done  # the step whose `after_optimizer_step` has been emitted
        self._loop_emits_after = False
        self._is_nested = False
        self._open_steps: list[int] = []  # the iteration of each call of `step` in progress, outermost first

    @property
    def is_attached(self) -> bool:
        """Whether the step hooks are registered."""
        return self._post_handle is not None

    def attach(self) -> None:
        """Register the step hooks on the run's optimizer, if there is one and the loop does not count steps itself.

        Raises:
            LoopError: If the optimizer does not support step hooks.
        """
        if self._run.optimizer is None or self._run.counts_steps or self._post_handle is not None:
            return
        self._optimizer = unwrap_optimizer(self._run.optimizer)
        if not hasattr(self._optimizer, "register_step_post_hook"):
            raise LoopError(
                f"optimizer: the steps of {type(self._optimizer).__name__} cannot be counted, because it has no "
                "`register_step_post_hook` (see torch.optim.Optimizer). Emit before_optimizer_step and "
                "after_optimizer_step around each optimizer step, and set counts_steps=True."
            )
        self._is_nested = _has_nested_steps(type(self._optimizer))
        self._post_handle = self._optimizer.register_step_post_hook(self._post_step)
        self.on_hooks_changed()

    def on_hooks_changed(self) -> None:
        """Register the pre-hook, because hooks for `before_optimizer_step` may have been registered on the bus."""
        # The pre-hook removes itself in `_post_step` if no hook uses it, which saves its call in every optimizer step.
        if self._post_handle is not None and self._pre_handle is None:
            self._pre_handle = self._optimizer.register_step_pre_hook(self._pre_step)

    def detach(self) -> None:
        """Remove the step hooks from the optimizer."""
        for handle in (self._pre_handle, self._post_handle):
            if handle is not None:
                handle.remove()
        self._pre_handle = self._post_handle = None

    def manual_emitter(self, point: str, emitter: Callable[..., None]) -> Callable[..., None]:
        """Return an emitter for a loop that emits an optimizer point itself.

        Args:
            point: "before_optimizer_step" or "after_optimizer_step".
            emitter: The emitter of the point.
        """
        if not self.is_attached:
            return emitter

        def before(*arguments: Any) -> None:
            self._before_emitted = self._pre_handle is not None
            emitter(*arguments)

        def after(*arguments: Any) -> None:
            # From the second step on, the step hook leaves `after_optimizer_step` to the loop.
            self._loop_emits_after = True
            # Not emitted again for the first step, and not emitted for a step that the gradient scaler skipped.
            if self._after_emitted_step != self._run.clock.steps_done:
                self._after_emitted_step = self._run.clock.steps_done
                emitter(*arguments)

        return before if point == "before_optimizer_step" else after

    def _pre_step(self, optimizer: Any, *_: Any) -> None:
        run = self._run
        if self._is_nested and not self._enter_step():
            return
        if _is_skipped_by_scaler(optimizer):
            return
        run.clock.stepped = False
        if not self._before_emitted and run.bus.calls.before_optimizer_step:
            run.bus.calls.before_optimizer_step()
        self._before_emitted = False

    def _post_step(self, optimizer: Any, *_: Any) -> None:
        if (self._is_nested and not self._exit_step()) or _is_skipped_by_scaler(optimizer):
            return
        clock, calls = self._run.clock, self._run.bus.calls
        clock.count_step()
        if not self._loop_emits_after:
            self._after_emitted_step = clock.steps_done
            if calls.after_optimizer_step:
                calls.after_optimizer_step()
        # With nested steps, the pre-hook is required for `_enter_step`.
        if self._pre_handle is not None and calls.before_optimizer_step is None and not self._is_nested:
            self._pre_handle.remove()
            self._pre_handle = None

    def _enter_step(self) -> bool:
        """Record the start of a call of `step`. Return whether it is the outermost one."""
        iteration = self._run.clock.iters_done
        # A call that raised an exception never reaches `_exit_step`; entries of earlier iterations are such calls.
        self._open_steps = [started for started in self._open_steps if started == iteration]
        self._open_steps.append(iteration)
        return len(self._open_steps) == 1

    def _exit_step(self) -> bool:
        """Record the end of a call of `step`. Return whether it was the outermost one."""
        self._open_steps.pop()
        return not self._open_steps


def _has_nested_steps(cls: type) -> bool:
    """Return whether `step` may call the `step` of a parent class, for which torch calls the step hooks as well."""
    # `hookbus._run.run` imports this module, and importing it must not import torch.
    from torch.optim import Optimizer

    optimizers = cls.__mro__[: cls.__mro__.index(Optimizer)] if issubclass(cls, Optimizer) else ()
    return sum("step" in vars(optimizer) for optimizer in optimizers) > 1


def _is_skipped_by_scaler(optimizer: Any) -> bool:
    """Return whether this call of `step` is a no-op because the gradients of a fused optimizer overflowed."""
    # GradScaler (torch 2.x) skips `step` of other optimizers, but calls it for fused ones with `found_inf` set.
    found_inf = optimizer.__dict__.get("found_inf")
    return found_inf is not None and bool(found_inf.item())
