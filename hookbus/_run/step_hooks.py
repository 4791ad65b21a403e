"""Steps of optimizers: the hooks that report them, and those that are missing, unknown or between the iterations."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hookbus._utils.arguments import format_label
from hookbus.distributed.unwrap import unwrap_optimizer
from hookbus.errors import LoopError


class StepHooks:
    """Step hooks of one optimizer, which report the beginning and the end of each step.

    A step with a closure begins after the first evaluation of the closure, when the gradients exist. Steps that a
    gradient scaler skips, and steps that a parent class performs within another step, are not reported.

    Args:
        events: `OptimizerEvents` of the run, which receives the steps.
        name: Name of the optimizer in the run; "" for an optimizer without a name.
        optimizer: Optimizer, or a wrapper of one.

    Attributes:
        emitted_by_loop: Whether the loop has emitted `before_optimizer_step` for the next step.
        begun_in: Iteration of the step in progress after its beginning was reported; -1 otherwise.
        pre_handle: Handle of the pre-hook of the optimizer; None if it is not registered.
        iters_done, count: Number of completed iterations at the last step, and number of steps since then.
    """

    def __init__(self, events: Any, name: str, optimizer: Any) -> None:
        self.name, self.optimizer = name, optimizer
        self.emitted_by_loop, self.begun_in = False, -1
        self.iters_done, self.count = -1, 0
        self._events = events
        self._inner = unwrap_optimizer(optimizer)
        self.pre_handle: Any = None
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
        if self._post_handle is not None and self.pre_handle is None:
            self.pre_handle = self._inner.register_step_pre_hook(self._pre_step)

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in (self.pre_handle, self._post_handle):
            if handle is not None:
                handle.remove()
        self.pre_handle = self._post_handle = None

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
        if self._is_nested:
            self._open_steps.pop()
        if self._open_steps or _is_skipped_by_scaler(optimizer):
            return
        self._events.end_step(self)
        # With nested steps, the pre-hook is required for `_enter_step`.
        if self.pre_handle is not None and not self._is_nested and not self._events.reports_begin:
            self.pre_handle.remove()
            self.pre_handle = None

    def _enter_step(self) -> bool:
        """Record the start of a call of `step`. Return whether it is the outermost one."""
        iteration = self._events.iters_done
        # A call that raised an exception never reaches `_post_step`; entries of earlier iterations are such calls.
        self._open_steps = [started for started in self._open_steps if started == iteration]
        self._open_steps.append(iteration)
        return len(self._open_steps) == 1


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


class IdleOptimizers:
    """Find the optimizers that made no step since the last call of `find`. Each problem is found once.

    Args:
        counts: Number of steps by optimizer at the start.
        iterations: Number of completed iterations at the start.
        scaler: Gradient scaler, or None.
    """

    def __init__(self, counts: Mapping[str, int], iterations: int, scaler: Any) -> None:
        self._counts, self._iterations = dict(counts), iterations
        self._scaler, self._scale = scaler, _get_scale(scaler)
        self._found: set[tuple[str, bool]] = set()

    def find(self, counts: Mapping[str, int], iterations: int) -> Iterator[str]:
        """Yield a message for each optimizer without steps since the last call. Synchronizes with a device scaler.

        Args:
            counts: Number of steps by optimizer.
            iterations: Number of completed iterations.
        """
        number, scale = iterations - self._iterations, _get_scale(self._scaler)
        is_skipping = scale is not None and self._scale is not None and scale < self._scale
        idle = [name for name, count in counts.items() if count == self._counts.get(name, 0)] if number else []
        for name in idle:
            # An optimizer that has stepped before may pause, such as one of several that alternate.
            if (is_skipping or not counts[name]) and (name, is_skipping) not in self._found:
                self._found.add((name, is_skipping))
                yield self._format(name, number, scale if is_skipping else None)
        self._counts, self._iterations, self._scale = dict(counts), iterations, scale

    def _format(self, name: str, number: int, scale: float | None) -> str:
        label = format_label("optimizer", name)
        if scale is None:
            return (
                f"{label}: no step in {number} iterations, so its parameters are not trained. Call the step() of the "
                "optimizer that was passed to the run."
            )
        return (
            f"{label}: the gradient scaler skipped every step in {number} iterations, because gradients contain inf or "
            f"NaN, and reduced its scale from {self._scale:g} to {scale:g}. Find the first operation that overflows, "
            "or train with bf16."
        )


def _get_scale(scaler: Any) -> float | None:
    """Return the scale of a gradient scaler, None if there is none or it is disabled."""
    if scaler is None or not getattr(scaler, "is_enabled", bool)():
        return None
    return float(scaler.get_scale())


_active: list[SteppedOptimizers] = []
"""Records of the active runs, in the order of their start."""

_handle: Any = None


class SteppedOptimizers:
    """Record the optimizers that step in this thread and that no active run knows.

    Args:
        known: Optimizers of the run, or wrappers of optimizers.
        is_paused: Function that returns whether steps are not recorded at the moment.
        on_new: Function that is called after an optimizer was recorded.
    """

    def __init__(self, known: Iterable[Any], is_paused: Callable[[], bool], on_new: Callable[[], object]) -> None:
        self.known = {id(unwrap_optimizer(optimizer)) for optimizer in known}
        self._is_paused, self._on_new = is_paused, on_new
        self._thread = threading.get_ident()
        # Weak references: an optimizer that the loop has discarded has no state to save.
        self._unknown: dict[int, weakref.ref[Any]] = {}

    def start(self) -> None:
        """Start to record."""
        global _handle
        from torch.optim.optimizer import register_optimizer_step_post_hook  # importing this must not import torch

        _active.append(self)
        if _handle is None:
            _handle = register_optimizer_step_post_hook(_on_step)

    def stop(self) -> None:
        """Stop to record. Idempotent."""
        global _handle
        if self in _active:
            _active.remove(self)
        if not _active and _handle is not None:
            _handle.remove()
            _handle = None

    def get_unknown(self) -> list[Any]:
        """Return the recorded optimizers that still exist."""
        return [optimizer for reference in self._unknown.values() if (optimizer := reference()) is not None]

    def record(self, optimizer: Any) -> bool:
        """Record an optimizer. Return whether steps in this thread are recorded at the moment."""
        if threading.get_ident() != self._thread or self._is_paused():
            return False
        previous = self._unknown.get(id(optimizer))
        # The ID of a discarded optimizer may be used again.
        if previous is None or previous() is not optimizer:
            self._unknown[id(optimizer)] = weakref.ref(optimizer)
            self._on_new()
        return True


def _on_step(optimizer: Any, *_: Any) -> None:
    """Record an optimizer in the innermost run of this thread, unless a run knows it. Called after each step."""
    if not any(id(optimizer) in steps.known for steps in _active):
        any(steps.record(optimizer) for steps in reversed(_active))


LATE_STEP = (
    "%s: stepped after after_train_iter of iteration %s. A checkpoint of an iteration does not contain this step, so a "
    "run that resumes from it differs. Call step() before after_train_iter is emitted."
)
REPEATED_STEP = (
    "%s: stepped before the next iteration of an epoch that the run resumes after iteration %s. The checkpoint "
    "contains the step at the start of the epoch, so the run differs. Call step() after the batches of an epoch."
)


class IterationGap:
    """Find optimizers and schedulers that step between `after_train_iter` and the next `before_train_iter`.

    The iterations up to the one after the first optimizer step are checked, and the first one of a resumed run.

    Attributes:
        is_watching: Whether the end of the iteration has to be recorded.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.is_watching = False
        self._recorded: tuple[int, dict[str, Any], str] | None = None

    def record(self) -> None:
        """Record the steps at the end of an iteration."""
        if self.is_watching:
            self._recorded = self._run.clock.epoch_first_iter, self._count(), LATE_STEP

    def record_resume(self) -> None:
        """Record the steps of a run that continues an epoch: the loop executes the code before its batches again."""
        clock = self._run.clock
        if clock.epoch_open and clock.iters_done > clock.epoch_first_iter:
            self._recorded = clock.epoch_first_iter, self._count(), REPEATED_STEP

    def check(self) -> None:
        """Warn, at the start of an iteration, if there were steps since the previous iteration of the epoch."""
        if self._recorded is None:
            return
        (first_iter, before, message), self._recorded = self._recorded, None
        run, counts = self._run, self._count()
        if first_iter != run.clock.epoch_first_iter:  # the end of an epoch is in the checkpoints of epochs
            return
        self.is_watching = bool(run.optimizers) and not any(run.optimizer_events.counts.values())
        if stepped := [name for name, count in counts.items() if count != before.get(name)]:
            self.is_watching = False
            run.logger.warning(message, ", ".join(stepped), run.iters_done)

    def _count(self) -> dict[str, Any]:
        """Return the number of steps of each optimizer and scheduler."""
        run = self._run
        counts = {format_label("optimizer", name): count for name, count in run.optimizer_events.counts.items()}
        schedulers = {format_label("scheduler", name): scheduler for name, scheduler in run.schedulers.items()}
        return counts | {name: getattr(scheduler, "last_epoch", None) for name, scheduler in schedulers.items()}
