"""Switch of the data pipeline during a training."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus.errors import ConfigError
from hookbus_schedule.border import Border
from hookbus_schedule.config import PipelineSwitchConfig
from hookbus_schedule.pipelines import SwitchPipeline, say_who_reads_along

__all__ = ["PipelineSwitchHook"]


class PipelineSwitchHook(Hook):
    """Replace the pipeline of the training dataset from an epoch or iteration, in all processes that read it.

    The pipeline is a function of epoch and iteration, so a resumed run requires no state. Multiple instances of this
    hook apply in the order of their milestones, regardless of hook order.

    Attributes:
        border: Milestone from which the pipeline is used.
    """

    Config = PipelineSwitchConfig
    makes_requests = False
    config: PipelineSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.border = Border(self.config.switch_epoch, self.config.switch_iter)
        self._switched = False

    def check(self, run: Run) -> None:
        """Check that the dataset has a pipeline, and that the milestones of all such hooks have an order.

        Raises:
            ConfigError: If one of these conditions is not met.
        """
        switch = SwitchPipeline(_stages(run))
        if run.train_loader is not None:
            switch.check(run.train_loader)
            say_who_reads_along(run, self.name, switch)

    def before_train(self, run: Run) -> None:
        """Register the switch of the dataset."""
        self._switched = False
        # One switch for all instances: separate switches would overwrite the pipelines of each other.
        if _all_of(run)[0] is self:
            run.training_data.before_reading(SwitchPipeline(_stages(run)))

    def before_train_iter(self, run: Run) -> None:
        """Log the switch.

        Raises:
            LoopError: If the loop does not read the training data through the run.
        """
        if self._switched or not self.border.reached(run.epoch, run.iter):
            return
        self._switched = True
        run.training_data.see_that_it_reads(self.name)
        numbers = run.clock.number("epoch"), run.clock.number("iter")
        run.logger.info("%s: the pipeline is switched from epoch %s, iteration %s.", self.name, *numbers)


def _all_of(run: Run) -> list[PipelineSwitchHook]:
    return [hook for hook in run.bus.hooks.values() if isinstance(hook, PipelineSwitchHook)]


def _stages(run: Run) -> list[tuple[Border, Any]]:
    """Return the pairs (milestone, pipeline) of all hooks in chronological order.

    Raises:
        ConfigError: If the milestones have no order: different units, or the same milestone twice.
    """
    hooks = _all_of(run)
    borders = {hook.border for hook in hooks}
    if len({border.epoch is None for border in borders}) > 1 or len(borders) < len(hooks):
        names = " and ".join(repr(hook.name) for hook in hooks)
        raise ConfigError(
            [
                f"hooks {names} switch the pipeline of the same data in an undefined order. Set `switch_epoch` of all "
                "hooks or `switch_iter` of all hooks, to different values."
            ]
        )
    hooks.sort(key=lambda hook: (hook.border.epoch or 0, hook.border.iteration or 0))
    return [(hook.border, hook.config.switch_pipeline) for hook in hooks]
