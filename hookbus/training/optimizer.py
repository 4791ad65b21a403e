"""Updates, counted where they happen: by the optimizer's own step hooks.

So accumulation and updates that a gradient scaler leaves out are seen in any loop, and the optimizer points fire there
as well. A loop that emits `before_optimizer_step` and `after_optimizer_step` itself is not disturbed: each update has
exactly one of each, whoever fires it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["OptimizerEvents"]


class OptimizerEvents:
    """Counts the updates of a run's optimizer and fires the points around them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._optimizer: Any = None
        self._pre: Any = None
        self._post: Any = None
        self._before_fired = False
        self._after_fired = run.clock.steps_done  # the update whose `after` has been fired
        self._loop_fires_after = False
        self._is_nested = False
        self._inside: list[int] = []  # the iteration of each `step` that has begun inside of another one

    @property
    def attached(self) -> bool:
        """Whether an optimizer is being watched."""
        return self._post is not None

    def attach(self) -> None:
        """Watch the optimizer of the run; without one, nothing.

        Raises:
            LoopError: it has no step hooks, so nobody would count its updates.
        """
        if self._run.optimizer is None or self._run.counts_steps or self._post is not None:
            return
        self._optimizer = _innermost(self._run.optimizer)
        if not hasattr(self._optimizer, "register_step_post_hook"):
            raise LoopError(
                f"The updates of {type(self._optimizer).__name__} cannot be counted: it has no step hooks as "
                "torch.optim.Optimizer has. Emit before_optimizer_step and after_optimizer_step around each update and "
                "say counts_steps=True."
            )
        self._is_nested = _has_nested_steps(type(self._optimizer))
        self._post = self._optimizer.register_step_post_hook(self._after)
        self.members_changed()

    def members_changed(self) -> None:
        """Somebody may listen before updates now: that takes a hook of its own, which is only there when needed."""
        if self._post is not None and self._pre is None:
            self._pre = self._optimizer.register_step_pre_hook(self._before)

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        for handle in (self._pre, self._post):
            if handle is not None:
                handle.remove()
        self._pre = self._post = None

    def explicit(self, point: str, emitter: Callable[..., None]) -> Callable[..., None]:
        """An emitter for a loop that fires an optimizer point itself."""
        if not self.attached:
            return emitter

        def before(*arguments: Any) -> None:
            self._before_fired = self._pre is not None
            emitter(*arguments)

        def after(*arguments: Any) -> None:
            self._loop_fires_after = True
            if self._after_fired != self._run.clock.steps_done:
                self._after_fired = self._run.clock.steps_done
                emitter(*arguments)

        return before if point == "before_optimizer_step" else after

    def _before(self, optimizer: Any, *_: Any) -> None:
        run = self._run
        if self._is_nested and not self._enter():
            return
        if _left_out_by_scaler(optimizer):
            return
        run.clock.stepped = False
        if not self._before_fired and run.bus.calls.before_optimizer_step:
            run.bus.calls.before_optimizer_step()
        self._before_fired = False

    def _after(self, optimizer: Any, *_: Any) -> None:
        if (self._is_nested and not self._leave()) or _left_out_by_scaler(optimizer):
            return
        clock, calls = self._run.clock, self._run.bus.calls
        clock.count_step()
        if not self._loop_fires_after:
            self._after_fired = clock.steps_done
            if calls.after_optimizer_step:
                calls.after_optimizer_step()
        if self._pre is not None and calls.before_optimizer_step is None and not self._is_nested:
            self._pre.remove()
            self._pre = None

    def _enter(self) -> bool:
        """A `step` begins. Returns whether it is the outermost one; those that an error has left count no more."""
        iteration = self._run.clock.iters_done
        self._inside = [each for each in self._inside if each == iteration]
        self._inside.append(iteration)
        return len(self._inside) == 1

    def _leave(self) -> bool:
        """A `step` ends. Returns whether it was the outermost one."""
        self._inside.pop()
        return not self._inside


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer inside wrappers such as Accelerate's and Fabric's (attribute `optimizer`)."""
    while getattr(optimizer, "optimizer", None) is not None:
        optimizer = optimizer.optimizer
    return optimizer


def _has_nested_steps(cls: type) -> bool:
    """Whether a `step` may call that of a parent class, for which torch calls the step hooks once more."""
    from torch.optim import Optimizer

    optimizers = cls.__mro__[: cls.__mro__.index(Optimizer)] if issubclass(cls, Optimizer) else ()
    return sum("step" in vars(each) for each in optimizers) > 1


def _left_out_by_scaler(optimizer: Any) -> bool:
    """Whether this call of `step` updates nothing: a fused optimizer is told so by the gradient scaler."""
    found = optimizer.__dict__.get("found_inf")
    return found is not None and bool(found.item())
