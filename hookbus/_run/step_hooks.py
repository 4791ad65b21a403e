"""Step hooks of one optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hookbus.distributed.unwrap import unwrap_optimizer
from hookbus.errors import LoopError


class StepReceiver(Protocol):
    """Receiver of the steps of optimizers."""

    reports_begin: bool

    @property
    def iters_done(self) -> int:
        """Number of completed iterations of the run."""

    def begin_step(self, hooks: StepHooks) -> None:
        """Receive the beginning of a step."""

    def end_step(self, hooks: StepHooks) -> None:
        """Receive the end of a step."""


class StepHooks:
    """Step hooks of one optimizer, which report the beginning and the end of each step.

    A step with a closure begins after the first evaluation of the closure, when the gradients exist. Steps that a
    gradient scaler skips, and steps that a parent class performs within another step, are not reported.

    Args:
        events: Receiver of the steps.
        name: Name of the optimizer in the run; "" for an optimizer without a name.
        optimizer: Optimizer, or a wrapper of one.

    Attributes:
        emitted_by_loop: Whether the loop has emitted `before_optimizer_step` for the next step.
        begun_in: Iteration of the step in progress after its beginning was reported; -1 otherwise.
        iters_done, count: Number of completed iterations at the last step, and number of steps since then.
    """

    def __init__(self, events: StepReceiver, name: str, optimizer: Any) -> None:
        self.name, self.optimizer = name, optimizer
        self.emitted_by_loop, self.begun_in = False, -1
        self.iters_done, self.count = -1, 0
        self._events = events
        self._inner = unwrap_optimizer(optimizer)
        self._pre_handle: Any = None
        self._post_handle: Any = None
        self._is_nested = False
        self._open_steps: list[int] = []  # the iteration of each call of `step` in progress, outermost first

    def attach(self) -> None:
        """Register the post-hook.

        Raises:
            LoopError: If the optimizer does not support step hooks.
        """
        if not hasattr(self._inner, "register_step_post_hook"):
            raise LoopError(
                f"optimizer: the steps of {type(self._inner).__name__} cannot be counted, because it has no "
                "`register_step_post_hook` (see torch.optim.Optimizer). Emit before_optimizer_step and "
                "after_optimizer_step around each optimizer step, and set counts_steps=True."
            )
        self._is_nested = _has_nested_steps(type(self._inner))
        self._post_handle = self._inner.register_step_post_hook(self._post_step)

    def attach_pre_hook(self) -> None:
        """Register the pre-hook, unless it is registered. It is removed after a step that does not require it."""
        if self._post_handle is not None and self._pre_handle is None:
            self._pre_handle = self._inner.register_step_pre_hook(self._pre_step)

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in (self._pre_handle, self._post_handle):
            if handle is not None:
                handle.remove()
        self._pre_handle = self._post_handle = None

    @property
    def has_pre_hook(self) -> bool:
        """Whether the pre-hook is registered."""
        return self._pre_handle is not None

    def _pre_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (self._is_nested and not self._enter_step()) or _is_skipped_by_scaler(optimizer):
            return None
        self.begun_in = -1  # a step that raised an exception has not ended
        # torch passes the optimizer as the first argument.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None or self.emitted_by_loop or not self._events.reports_begin:
            self._events.begin_step(self)
            return None
        reporting = self._report_after(closure)
        return ((args[0], reporting, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": reporting})

    def _report_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that also reports the beginning of the step, after its first evaluation."""
        is_first = True

        def evaluate() -> Any:
            nonlocal is_first
            loss = closure()
            if is_first:
                is_first = False
                self._events.begin_step(self)
            return loss

        return evaluate

    def _post_step(self, optimizer: Any, *_: Any) -> None:
        if (self._is_nested and not self._exit_step()) or _is_skipped_by_scaler(optimizer):
            return
        self._events.end_step(self)
        # With nested steps, the pre-hook is required for `_enter_step`.
        if self._pre_handle is not None and not self._is_nested and not self._events.reports_begin:
            self._pre_handle.remove()
            self._pre_handle = None

    def _enter_step(self) -> bool:
        """Record the start of a call of `step`. Return whether it is the outermost one."""
        iteration = self._events.iters_done
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
