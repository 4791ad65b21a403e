"""Mean teacher: a module of the model that is a moving average of another one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor, nn

from hookbus import Hook, Needs, Run, Unit, hookimpl
from hookbus.distributed import unwrap_model
from hookbus.errors import ConfigError, HookError
from hookbus_runtime.config import MeanTeacherConfig
from hookbus_runtime.teacher_update import list_copied, match_tensors, update_teacher


class MeanTeacherHook(Hook):
    """Update the teacher module as a moving average of the student module after each optimizer step.

    The hook wraps the action `train_step`, so that all events after the step use the updated teacher. A training from
    scratch starts with a copy of the student. The teacher is part of the model and therefore of its checkpoints.
    """

    Config = MeanTeacherConfig
    makes_requests = False
    needs = Needs(actions=("train_step",), modules=True)
    config: MeanTeacherConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._wrapped_iteration = -1  # index of the last iteration whose step was wrapped

    def check(self, run: Run) -> None:
        """Check that the model contains a teacher and a student of the same architecture.

        Raises:
            HookError: If it does not.
        """
        try:
            match_tensors(*self._get_modules(run), buffers=True)
        except (AttributeError, ValueError) as error:
            raise HookError(
                f"updates {self.config.teacher!r} of the model from {self.config.student!r}: {error}. Add both modules "
                "with the same architecture, or set `teacher` and `student` to their names."
            ) from None
        self._check_other_teachers(run)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the optimizer step of the first update."""
        return {"interval": (self.config.interval, "step")}

    def before_train(self, run: Run) -> None:
        """Find both modules, and initialize the teacher if the training starts from scratch."""
        self._wrapped_iteration = -1
        self._pairs = match_tensors(*self._get_modules(run), buffers=not self.config.skip_buffer)
        if run.iters_done == 0:
            # Buffers included, whatever `skip_buffer` is: statistics of other weights would be invalid.
            update_teacher(match_tensors(*self._get_modules(run), buffers=True), 1)
        if copied := list_copied(self._get_modules(run)[0]):
            run.logger.warning("%s: cannot be averaged and are copied: %s.", self.name, ", ".join(copied))

    @hookimpl(wrapper=True)
    def train_step(self, run: Run) -> Generator[None, Any, Any]:
        """Update the teacher after the training step."""
        before = run.steps_done
        outputs = yield
        self._wrapped_iteration = run.iters_done
        # Without a known optimizer every iteration counts as a step, but only after `after_train_iter`.
        counts = run.steps_done > before or run.counts_iterations
        number = run.steps_done + run.counts_iterations
        if counts and number % self.config.interval == 0:
            update_teacher(self._pairs, self.config.momentum)
        return outputs

    @hookimpl(frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Check that the training step of the iteration was wrapped.

        Raises:
            HookError: If a custom loop calls its step directly instead of through the bus.
        """
        # Not `run.iter`, which begins with `before_train_iter`, if the loop emits it.
        if self._wrapped_iteration != run.iters_done - 1 and not run.should_skip_iter:
            raise HookError(
                f"hook {self.name!r} wraps the training step, but the loop calls its step directly. Create "
                'step = bus.action("train_step", my_step), and call step(batch) in the loop.'
            )

    def _check_other_teachers(self, run: Run) -> None:
        """Check that no other hook updates tensors that this hook reads or updates."""
        own = {id(tensor) for module in self._get_modules(run) for tensor in module.parameters()}
        for name, hook in self.find_others(run, MeanTeacherHook).items():
            if own.intersection(map(id, hook._get_modules(run)[0].parameters())):
                raise ConfigError(
                    [
                        f"updates {self.config.teacher!r} from {self.config.student!r}, but hook {name!r} updates "
                        f"{hook.config.teacher!r}, which shares parameters: the result would depend on the order of "
                        "the hooks. Use one hook per teacher, and no teacher as a student."
                    ]
                )

    def _get_modules(self, run: Run) -> tuple[nn.Module, nn.Module]:
        if run.model is None:
            raise ValueError("the run has no model")
        model = unwrap_model(run.model)
        return model.get_submodule(self.config.teacher), model.get_submodule(self.config.student)
