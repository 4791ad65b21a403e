"""Optimizer steps, counted by the step hooks of the optimizers.

Accumulation and steps that a gradient scaler skips are therefore counted correctly in any loop, and the optimizer
points are emitted automatically. A loop may also emit `before_optimizer_step` and `after_optimizer_step` itself: each
optimizer step has exactly one of each.

With several optimizers, an iteration counts as many steps as the optimizer that stepped most often in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._run.step_hooks import IdleOptimizers, StepHooks
from hookbus.errors import LoopError
from hookbus.writers.optimizer_values import get_group_names, get_optimizer_values, name_optimizer_values

if TYPE_CHECKING:
    from hookbus._run.run import Run

STATE_KEYS = {"lr": "rates", "momentum": "momentum", "weight_decay": "weight_decay"}
"""Keys of the values of optimizers in a checkpoint."""


class OptimizerEvents:
    """Count the steps of a run's optimizers, emit the optimizer points and record the values that were used.

    Args:
        run: The run.
        counts: Number of steps by optimizer of the run that this run continues.

    Attributes:
        counts: Number of steps by optimizer.
        reports_begin: Whether the beginning of each step is reported.
        on_step: Function that is called with the optimizer after each step and its listeners, or None.
        tracked: Names of the values that are recorded in each step, see `OPTIMIZER_VALUES`.
        is_paused: Whether steps are neither counted nor reported, since they are trial steps.
    """

    def __init__(self, run: Run, counts: Mapping[str, int]) -> None:
        self._run = run
        self._hooks = [StepHooks(self, name, optimizer) for name, optimizer in run.optimizers.items()]
        self.counts = {name: counts.get(name, 0) for name in run.optimizers}
        self._idle = IdleOptimizers(self.counts, run.clock.iters_done, run.scaler)
        self.reports_begin = False
        self.on_step: Callable[[Any], object] | None = None
        self.tracked: tuple[str, ...] = ()
        self._values: dict[str, dict[str, list[Any]]] = {}  # of the last step, by optimizer and name
        self._is_attached = self.is_paused = False
        self._after_emitted_step = run.clock.steps_done  # the step whose `after_optimizer_step` has been emitted
        self._loop_emits_after = False

    @property
    def iters_done(self) -> int:
        """Number of completed iterations of the run."""
        return self._run.clock.iters_done

    @property
    def has_pending_step(self) -> bool:
        """Whether one of several optimizers made no step in the last iteration, and may be accumulating gradients."""
        return len(self._hooks) > 1 and any(hooks.iters_done < self.iters_done - 1 for hooks in self._hooks)

    def attach(self) -> None:
        """Register the step hooks on the run's optimizers, unless the loop counts steps itself.

        Raises:
            LoopError: If an optimizer does not support step hooks.
        """
        if self._run.counts_steps or self._is_attached:
            return
        for hooks in self._hooks:
            hooks.attach()
        self._is_attached = bool(self._hooks)
        self.on_hooks_changed()

    def on_hooks_changed(self) -> None:
        """Register the pre-hooks, because hooks for `before_optimizer_step` may have been registered on the bus."""
        self.reports_begin = True  # until a step finds that no hook requires it
        for hooks in self._hooks:
            hooks.attach_pre_hook()

    def report_idle(self) -> None:
        """Log a warning for each optimizer that made no step; called at the end of an epoch and of the training."""
        run = self._run
        # In an accumulation that is longer than an epoch, or in a truncated epoch, a step may not be due yet.
        if self._hooks and not run.accumulated and not run.stops:
            for message in self._idle.find(self.counts, run.clock.iters_done):
                run.logger.warning("%s", message)

    def detach(self) -> None:
        """Remove the step hooks from the optimizers."""
        for hooks in self._hooks:
            hooks.detach()
        self._is_attached = False

    # -- steps ---------------------------------------------------------------------------------

    def begin_step(self, hooks: StepHooks) -> None:
        """Emit `before_optimizer_step`, unless the loop has emitted it, and record the values of the step."""
        if self.is_paused:
            return
        emit, clock = self._run.bus.calls.before_optimizer_step, self._run.clock
        is_counted = not self._advances_count(hooks)
        if not is_counted:
            clock.stepped = False
        # The number of a step that is counted already, so that a schedule is due at each optimizer of a step.
        clock.steps_done -= is_counted
        try:
            if emit and not hooks.emitted_by_loop:
                emit(optimizer=hooks.optimizer)
        finally:
            clock.steps_done += is_counted
        hooks.emitted_by_loop, hooks.begun_in = False, clock.iters_done
        # After the listeners, which may set the learning rate of this step.
        self._record_values(hooks)

    def end_step(self, hooks: StepHooks) -> None:
        """Count a step, and emit `after_optimizer_step` unless the loop emits it."""
        if self.is_paused:
            return
        calls = self._run.bus.calls
        if hooks.begun_in < 0 and hooks.pre_handle is not None:
            self.begin_step(hooks)  # an optimizer that did not call its closure
        hooks.begun_in = -1
        self._count(hooks)
        if not self._loop_emits_after:
            self._after_emitted_step = self._run.clock.steps_done
            if calls.after_optimizer_step:
                calls.after_optimizer_step(optimizer=hooks.optimizer)
        if self.on_step is not None:
            self.on_step(hooks.optimizer)
        self.reports_begin = bool(self.tracked) or calls.before_optimizer_step is not None

    def count_emitted(self, optimizer: Any) -> None:
        """Count the step of a loop that emits the optimizer points itself; called at `after_optimizer_step`."""
        if not self._hooks:
            self._run.clock.count_step()
            return
        hooks = self._find(optimizer)
        if hooks.begun_in < 0:
            self._record_values(hooks)
        hooks.begun_in = -1
        self._count(hooks)

    def begin_emitted(self, optimizer: Any) -> None:
        """Record the values of the step of a loop that counts steps; called before `before_optimizer_step`."""
        if self.tracked and self._hooks:
            hooks = self._find(optimizer)
            hooks.begun_in = self.iters_done
            self._record_values(hooks)

    def manual_emitter(self, point: str, emitter: Callable[..., None]) -> Callable[..., None]:
        """Return an emitter for a loop that emits an optimizer point itself.

        Args:
            point: "before_optimizer_step" or "after_optimizer_step".
            emitter: The emitter of the point.
        """
        if not self._is_attached:
            return emitter

        def before(*arguments: Any) -> None:
            hooks = self._find(arguments[-1].get("optimizer"))
            # The step may have begun already, in a closure that is evaluated several times.
            if hooks.begun_in != self.iters_done:
                hooks.emitted_by_loop = hooks.pre_handle is not None
                emitter(*arguments)

        def after(*arguments: Any) -> None:
            self._find(arguments[-1].get("optimizer"))
            # From the second step on, the step hook leaves `after_optimizer_step` to the loop.
            self._loop_emits_after = True
            # Not emitted again for the first step, and not emitted for a step that the gradient scaler skipped.
            if self._after_emitted_step != self._run.clock.steps_done:
                self._after_emitted_step = self._run.clock.steps_done
                emitter(*arguments)

        return before if point == "before_optimizer_step" else after

    def _find(self, optimizer: Any) -> StepHooks:
        """Return the step hooks of an optimizer; None for the only one.

        Raises:
            LoopError: If it is not an optimizer of the run, or None with several optimizers.
        """
        if len(self._hooks) == 1:
            return self._hooks[0]
        for hooks in self._hooks:
            if hooks.optimizer is optimizer:
                return hooks
        names = ", ".join(hooks.name for hooks in self._hooks)
        got = "none" if optimizer is None else f"another {type(optimizer).__name__}"
        raise LoopError(
            f"optimizer: an optimizer point of a run with several optimizers ({names}) requires the optimizer, got "
            f"{got}. Pass optimizer= to `emit`."
        )

    def _advances_count(self, hooks: StepHooks) -> bool:
        """Return whether the next step of an optimizer advances the number of steps."""
        if len(self._hooks) == 1:
            return True
        clock = self._run.clock
        count = hooks.count if hooks.iters_done == clock.iters_done else 0
        return count >= clock.steps_since_iter

    def _count(self, hooks: StepHooks) -> None:
        """Count a step of an optimizer."""
        clock = self._run.clock
        advances = self._advances_count(hooks)
        if hooks.iters_done != clock.iters_done:
            hooks.iters_done, hooks.count = clock.iters_done, 0
        hooks.count += 1
        self.counts[hooks.name] += 1
        if advances:
            clock.count_step()

    # -- values of parameter groups ------------------------------------------------------------

    def track_values(self, *names: str) -> None:
        """Record values of each step from now on, see `OPTIMIZER_VALUES`."""
        self.tracked = tuple(dict.fromkeys((*self.tracked, *names)))
        self.on_hooks_changed()

    def get_values(self, *names: str) -> dict[str, float]:
        """Return the values that each optimizer used in its last step; the current ones before its first step.

        Synchronizes with the device if a value is a tensor.
        """
        named: dict[str, float] = {}
        for value in names:
            for name, optimizer in self._run.optimizers.items():
                current = get_optimizer_values(optimizer, value)
                used = self._values.get(name, {}).get(value, [])[: len(current)]
                # Groups that were added since the last step have their current values.
                numbers = [*used, *current[len(used) :]]
                named |= name_optimizer_values(numbers, get_group_names(optimizer), value, name)
        return named

    def _record_values(self, hooks: StepHooks) -> None:
        if self.tracked:
            self._values[hooks.name] = {value: get_optimizer_values(hooks.optimizer, value) for value in self.tracked}

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of steps, and the iterations and values of the last steps."""
        iterations = {hooks.name: hooks.iters_done for hooks in self._hooks}
        state: dict[str, Any] = {"steps": dict(self.counts), "iterations": iterations, STATE_KEYS["lr"]: {}}
        for name, values in self._values.items():
            for value, numbers in values.items():
                builtin = [None if number is None else float(number) for number in numbers]
                state.setdefault(STATE_KEYS[value], {})[name] = builtin
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`; {} in checkpoints of earlier versions."""
        self.counts |= state.get("steps", {})
        iterations = state.get("iterations", {})
        for hooks in self._hooks:
            hooks.iters_done, hooks.count = iterations.get(hooks.name, self.iters_done - 1), 0
        self._idle = IdleOptimizers(self.counts, self.iters_done, self._run.scaler)
        self._values = {}
        for value, key in STATE_KEYS.items():
            for name, numbers in state.get(key, {}).items():
                self._values.setdefault(name, {})[value] = list(numbers)
