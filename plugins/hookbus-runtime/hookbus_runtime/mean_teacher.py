"""A teacher inside the model follows its student."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch import Tensor, nn

from hookbus import Hook, Run, hookimpl
from hookbus.errors import HookError
from hookbus.model.wrappers import unwrapped
from hookbus_runtime.config import MeanTeacherConfig
from hookbus_runtime.follow import follow, pairs

__all__ = ["MeanTeacherHook"]


class MeanTeacherHook(Hook):
    """Moves the teacher towards the student after each step that made an update.

    It wraps the action `train_step`, so that everything after the step sees the teacher that belongs to it. A training
    that begins at zero begins with an exact copy. The teacher is part of the model, so checkpoints keep it.
    """

    Config = MeanTeacherConfig
    makes_requests = False
    config: MeanTeacherConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._wrapped = -1  # the index of the iteration whose step was wrapped

    def check(self, run: Run) -> None:
        """See that the model has both, and that they are of the same make.

        Raises:
            HookError: it does not, or they are not.
        """
        try:
            pairs(*self._both(run), buffers=True)
        except (AttributeError, ValueError) as error:
            raise HookError(
                f"it moves {self.config.teacher!r} of the model towards {self.config.student!r}: {error}. Give the "
                "model both as modules of the same make, or say teacher and student."
            ) from None

    def before_train(self, run: Run) -> None:
        """Find both in the model, and copy the student where the training begins."""
        self._wrapped = -1
        self._pairs = pairs(*self._both(run), buffers=not self.config.skip_buffer)
        if run.iters_done == 0:
            follow(pairs(*self._both(run), buffers=True), 1)

    @hookimpl(wrapper=True)
    def train_step(self, run: Run) -> Generator[None, Any, Any]:
        """Let the step be made, then let the teacher follow."""
        before = run.steps_done
        outputs = yield
        self._wrapped = run.iter
        counts = run.steps_done > before or run.clock.counts_iterations
        number = run.steps_done + run.clock.counts_iterations  # without an optimizer this iteration is counted later
        if counts and number % self.config.interval == 0:
            follow(self._pairs, self.config.momentum)
        return outputs

    def after_train_iter(self, run: Run) -> None:
        """See that the step was wrapped.

        Raises:
            HookError: a loop of one's own makes its steps past the bus.
        """
        if self._wrapped != run.iter and not run.should_skip_iter:
            raise HookError(
                f"hook {self.name!r} wraps the training step, and this loop makes it by itself: call "
                'step = bus.action("train_step", my_step), and step(batch) in the loop.'
            )

    def _both(self, run: Run) -> tuple[nn.Module, nn.Module]:
        if run.model is None:
            raise ValueError("there is no model")
        model = unwrapped(run.model)
        return model.get_submodule(self.config.teacher), model.get_submodule(self.config.student)
